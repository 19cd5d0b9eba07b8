package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
)

func serving(t *testing.T, conn grpc.ClientConnInterface) grpc_health_v1.HealthCheckResponse_ServingStatus {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	resp, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetStatus()
}

func TestServeFromStartToDrain(t *testing.T) {
	t.Parallel()
	p := beginService(t, "serve", "--database-url", pgtest.Database(t, nil))
	grpcAddress, httpAddress := p.addresses(t)
	for path, want := range map[string]string{"/healthz": "alive", "/readyz": "ready", "/metrics": "leasehold_loop_passes_total"} {
		if code, body := get(t, "http://"+httpAddress+path); code != 200 || !strings.Contains(body, want) {
			t.Errorf("%s: %d %.200q", path, code, body)
		}
	}
	conn := dial(t, grpcAddress)
	if got := serving(t, conn); got != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Errorf("health is %v", got)
	}
	if _, err := pb.NewQueueServiceClient(conn).CreateQueue(t.Context(), &pb.CreateQueueRequest{Queue: &pb.Queue{Name: "q"}}); err != nil {
		t.Fatal(err)
	}
	parked := make(chan error, 1)
	go func() {
		_, err := pb.NewLeaseServiceClient(conn).AcquireLease(t.Context(), &pb.AcquireLeaseRequest{
			Queues: []string{"q"}, LeaseOwner: "w/1", Wait: durationpb.New(time.Minute),
		})
		parked <- err
	}()
	eventually(t, "a parked poll", func() bool {
		_, body := get(t, "http://"+httpAddress+"/metrics")
		return strings.Contains(body, "leasehold_parked_polls 1")
	})
	p.signal(t, syscall.SIGTERM)
	if err := <-parked; status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "shutting down") {
		t.Errorf("the parked poll ended with %v", err)
	}
	p.mustExit(t, exitDone)
	if _, err := os.Stat(p.ready); !os.IsNotExist(err) {
		t.Errorf("the ready file is left behind: %v", err)
	}
}

// hang begins a call that the server waits for: its headers have come, its message never
// does.
func hang(t *testing.T, conn *grpc.ClientConn) {
	t.Helper()
	_, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true}, pb.JobService_Enqueue_FullMethodName)
	if err != nil {
		t.Fatal(err)
	}
	// What is answered behind the headers on the same connection shows that they have come.
	serving(t, conn)
}

func TestDrainEndsInTime(t *testing.T) {
	t.Parallel()
	p := beginService(t, "serve", "--database-url", pgtest.Database(t, nil), "--drain-timeout", "200ms")
	grpcAddress, _ := p.addresses(t)
	hang(t, dial(t, grpcAddress))
	p.signal(t, syscall.SIGTERM)
	p.says(t, "were cut off")
	p.mustExit(t, exitDone)
}

func TestSecondSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			p := beginService(t, "serve", "--database-url", pgtest.Database(t, nil), "--drain-timeout", "1h")
			grpcAddress, httpAddress := p.addresses(t)
			hang(t, dial(t, grpcAddress))
			p.signal(t, s)
			p.says(t, "shutting down")
			eventually(t, "an unready replica that drains", func() bool {
				code, body := get(t, "http://"+httpAddress+"/readyz")
				return code == 503 && strings.Contains(body, "draining")
			})
			p.mustRun(t)
			p.signal(t, s)
			p.mustExit(t, exitFailed)
		})
	}
}

// TestDatabaseComesAndGoes: at the start, in the middle, and back.
func TestDatabaseComesAndGoes(t *testing.T) {
	t.Parallel()
	pg := pgtest.Server(t)
	if err := pg.Halt(t.Context()); err != nil {
		t.Fatal(err)
	}
	ready := filepath.Join(t.TempDir(), "ready")
	if err := os.WriteFile(ready, []byte("of a killed predecessor"), 0o600); err != nil {
		t.Fatal(err)
	}
	socket := "unix:" + filepath.Join(t.TempDir(), "g")
	p := begin(t, nil, "serve", "--database-url", pg.URL("postgres"), "--listen", socket,
		"--http", freeAddress(t), "--ready-file", ready)
	p.ready = ready
	httpURL := "http://" + argument(p, "--http")
	unready := func(why string) func() bool {
		return func() bool {
			code, body := get(t, httpURL+"/readyz")
			return code == 503 && strings.Contains(body, why)
		}
	}
	eventually(t, "the reason", unready("waiting for the database"))
	if code, _ := get(t, httpURL+"/healthz"); code != 200 {
		t.Errorf("while it waits it is not alive: %d", code)
	}
	if _, err := os.Stat(ready); !os.IsNotExist(err) {
		t.Errorf("the ready file of a predecessor is still there: %v", err)
	}
	if err := pg.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	grpcAddress, _ := p.addresses(t)
	if grpcAddress != socket {
		t.Errorf("gRPC is on %q, want %q", grpcAddress, socket)
	}
	conn := dial(t, grpcAddress)
	if err := pg.Halt(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the reason", unready("the database is not available"))
	eventually(t, "NOT_SERVING", func() bool { return serving(t, conn) == grpc_health_v1.HealthCheckResponse_NOT_SERVING })
	if code, _ := get(t, httpURL+"/healthz"); code != 200 {
		t.Errorf("without its database it is not alive: %d", code)
	}
	if err := pg.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "ready again", func() bool { code, _ := get(t, httpURL+"/readyz"); return code == 200 })
	eventually(t, "SERVING", func() bool { return serving(t, conn) == grpc_health_v1.HealthCheckResponse_SERVING })
	p.signal(t, syscall.SIGINT)
	p.mustExit(t, exitDone)
}

// freeAddress is an address that was free a moment ago.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return actualAddress(l)
}

func argument(p *process, flag string) string {
	for i, arg := range p.cmd.Args {
		if arg == flag {
			return p.cmd.Args[i+1]
		}
	}
	return ""
}

func TestSignalWhileItWaitsForTheDatabase(t *testing.T) {
	t.Parallel()
	const secret = "hunter2secret"
	nobody := freeAddress(t)
	p := beginService(t, "serve", "--database-url", fmt.Sprintf("postgres://u:%s@%s/d?sslmode=disable", secret, nobody))
	p.says(t, "waiting for the database")
	p.signal(t, syscall.SIGTERM)
	p.mustExit(t, exitDone)
	if text := p.out.String() + p.err.String(); strings.Contains(text, secret) {
		t.Errorf("the password is in the log:\n%s", text)
	}
}

func TestAddressInUse(t *testing.T) {
	t.Parallel()
	l, err := listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	url := pgtest.Database(t, nil)
	for _, flags := range [][]string{
		{"--listen", "127.0.0.1:0", "--http", actualAddress(l)},
		{"--listen", actualAddress(l), "--http", "127.0.0.1:0"},
	} {
		p := begin(t, nil, append([]string{"serve", "--database-url", url}, flags...)...)
		p.mustExit(t, exitFailed)
		if !strings.Contains(p.err.String(), "address already in use") {
			t.Errorf("%v: the reason is missing:\n%s", flags, &p.err)
		}
	}
}

// TestReplicasThatStartAtOnce on an empty database take turns at the schema (R40).
func TestReplicasThatStartAtOnce(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t, nil)
	var replicas []*process
	for range 5 {
		replicas = append(replicas, beginService(t, "serve", "--database-url", url, "--auto-create-queues", "--pool-size", "4"))
	}
	for i, p := range replicas {
		grpcAddress, _ := p.addresses(t)
		key := fmt.Sprint("key ", i/2)
		_, err := pb.NewJobServiceClient(dial(t, grpcAddress)).Enqueue(t.Context(), &pb.EnqueueRequest{Queue: "q", IdempotencyKey: &key})
		if err != nil {
			t.Errorf("replica %d: %v", i, err)
		}
	}
	for _, p := range replicas {
		p.signal(t, syscall.SIGTERM)
	}
	for _, p := range replicas {
		p.mustExit(t, exitDone)
	}
}
