// Package faulttest holds the tests of the service under faults, as its users meet them: with
// replicas and workers as processes of their own that are killed, stopped and continued, with
// networks that cut and swallow between every two parts, and with databases that stop, freeze,
// fail over or are held by strangers. docs/reliability.md tells which failure is tested where.
//
// It has tests only.
package faulttest

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/internal/faultproxy"
	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
	"github.com/leasehold/leasehold/internal/replica"
	"github.com/leasehold/leasehold/store/postgres"
	"github.com/leasehold/leasehold/store/postgres/backdoor"
)

const (
	// patience bounds every wait for something that must come about, on a busy machine.
	patience = time.Minute
	// callTime is a worker's deadline for a call that does not wait.
	callTime = 10 * time.Second
)

// binary is the service, built once.
var binary string

func TestMain(m *testing.M) {
	// Each test runs several processes: more side by side would only make all of them slow.
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	flag.Parse() // what the command line says comes second, and stays
	dir, err := os.MkdirTemp("", "leasehold-faults-")
	if err == nil {
		binary, err = replica.Build(context.Background(), dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := pgtest.Run(m)
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

func migrate(ctx context.Context, url string) error {
	return postgres.Migrate(ctx, url, slog.New(slog.DiscardHandler))
}

// member is one replica, with a proxy on either side of it, and a client that reaches it
// through the outer one.
type member struct {
	*replica.Replica
	outer  *faultproxy.Proxy // between clients and the replica
	inner  *faultproxy.Proxy // between the replica and PostgreSQL
	conn   *grpc.ClientConn
	leases pb.LeaseServiceClient
	jobs   pb.JobServiceClient
	queues pb.QueueServiceClient
}

// fleet is some replicas over one database.
type fleet struct {
	db      *backdoor.Database // straight to PostgreSQL, past every proxy
	members []*member
}

// newFleet starts n replicas over the database at url, which is migrated, until the end of
// the test. Arguments are added to those of serve.
func newFleet(t *testing.T, url string, n int, args ...string) *fleet {
	t.Helper()
	f := &fleet{db: backdoor.Open(t, url)}
	for range n {
		f.members = append(f.members, newMember(t, replica.Config{DatabaseURL: url, Args: args}))
	}
	return f
}

// newMember starts a replica behind two proxies; of cfg it needs DatabaseURL.
func newMember(t *testing.T, cfg replica.Config) *member {
	t.Helper()
	m := &member{}
	var err error
	if m.inner, err = faultproxy.New(hostOf(t, cfg.DatabaseURL)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.inner.Close)
	cfg.Binary, cfg.Dir = binary, t.TempDir()
	if cfg.DatabaseURL, err = m.inner.Through(cfg.DatabaseURL); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if m.Replica, err = replica.Start(ctx, cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.Kill()
		if t.Failed() {
			t.Logf("the replica at %s said:\n%s", m.GRPC(), m.Log())
		}
	})
	if m.outer, err = faultproxy.New(m.GRPC()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.outer.Close)
	m.conn = dial(t, m.outer.Addr())
	m.leases, m.jobs, m.queues = pb.NewLeaseServiceClient(m.conn), pb.NewJobServiceClient(m.conn), pb.NewQueueServiceClient(m.conn)
	return m
}

// database makes a migrated database on the server that the tests share.
func database(t *testing.T) string {
	t.Helper()
	return pgtest.Database(t, migrate)
}

func dial(t *testing.T, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// eventually waits for a condition that something else brings about.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("never came about: %s", what)
		}
	}
}

// accepted makes a call that must succeed.
func accepted[Req, Resp any](t *testing.T, method func(context.Context, Req, ...grpc.CallOption) (Resp, error), req Req) Resp {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callTime)
	defer cancel()
	resp, err := method(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

func to[T any](v T) *T { return &v }
