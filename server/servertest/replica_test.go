package servertest

import (
	"context"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/server"
	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/postgres"
)

// poolSize is that of each replica; pools open connections as they need them.
const poolSize = 12

// drainPatience is far above what the last calls of a test take.
const drainPatience = 30 * time.Second

// replica is one replica of the service: a server on a TCP port over a store of its own,
// and a client that is connected to it.
type replica struct {
	store  *postgres.Store
	server *server.Server
	gauges *prometheus.Registry
	addr   string
	conn   *grpc.ClientConn
	leases pb.LeaseServiceClient
	jobs   pb.JobServiceClient
	queues pb.QueueServiceClient
}

// startReplica starts a replica over the database of url, until the end of the test.
func startReplica(t testing.TB, url string) *replica {
	t.Helper()
	st := openStore(t, url)
	return serve(t, st, st)
}

func openStore(t testing.TB, url string) *postgres.Store {
	t.Helper()
	st, err := postgres.Open(t.Context(), postgres.Config{URL: url, PoolSize: poolSize, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	return st
}

// serve starts a server over behind, which is st or a Store around it. No loop runs beside
// it: what a test does not do itself does not happen.
func serve(t testing.TB, st *postgres.Store, behind store.Store) *replica {
	t.Helper()
	gauges := prometheus.NewRegistry()
	srv, err := server.New(t.Context(), behind, server.Config{Log: slog.New(slog.DiscardHandler), Registry: gauges})
	if err != nil {
		t.Fatal(err)
	}
	srv.SetServing(true)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), drainPatience)
		defer cancel()
		if err := srv.Drain(ctx); err != nil {
			t.Errorf("drain: %v", err)
		}
		if err := <-ended; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	conn := dial(t, l.Addr().String())
	return &replica{
		store: st, server: srv, gauges: gauges, addr: l.Addr().String(), conn: conn,
		leases: pb.NewLeaseServiceClient(conn), jobs: pb.NewJobServiceClient(conn), queues: pb.NewQueueServiceClient(conn),
	}
}

// parked is how many polls are parked in the replica.
func (r *replica) parked(t *testing.T) float64 {
	t.Helper()
	families, err := r.gauges.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "leasehold_parked_polls" {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatal("the replica does not count its parked polls")
	return 0
}

func dial(t testing.TB, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}
