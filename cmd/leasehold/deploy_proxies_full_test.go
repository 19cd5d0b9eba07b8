//go:build full

package main

import (
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/internal/doctest"
	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
	"github.com/leasehold/leasehold/internal/replica"
)

// sample is a file of deploy, with other words for some.
func sample(t *testing.T, path string, instead ...string) (file string) {
	t.Helper()
	text := readFile(t, filepath.Join(doctest.Root(t), "deploy"), path)
	for i := 0; i < len(instead); i += 2 {
		if !strings.Contains(text, instead[i]) {
			t.Fatalf("%s has no %q", path, instead[i])
		}
	}
	dir, err := os.MkdirTemp("", "leasehold-deploy-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { // the proxies run as other users
		t.Fatal(err)
	}
	file = filepath.Join(dir, filepath.Base(path))
	if err := os.WriteFile(file, []byte(strings.NewReplacer(instead...).Replace(text)), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// beginProxy starts a program that ends with the test, and that may refuse to be root.
func beginProxy(t *testing.T, program string, args ...string) {
	t.Helper()
	cmd := exec.Command(program, args...)
	if os.Getuid() == 0 {
		cmd = exec.Command("setpriv", append([]string{"--reuid=postgres", "--regid=postgres", "--clear-groups", program}, args...)...)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	said := &replica.Said{}
	cmd.Stdout, cmd.Stderr = said, said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = cmd.Wait() }() // killed at the end
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		<-ended
		if t.Failed() {
			t.Logf("%s said:\n%s", program, said)
		}
	})
}

// TestHAProxySample: HAProxy takes the file, and polls, heartbeats and completes go through it.
func TestHAProxySample(t *testing.T) {
	t.Parallel()
	p := beginService(t, "serve", "--database-url", pgtest.Database(t, nil))
	address, httpAddress := p.addresses(t)
	_, httpPort, _ := strings.Cut(httpAddress, ":")
	front := freeAddress(t)
	config := sample(t, "haproxy/haproxy.cfg", "maxconn 20000", "maxconn 200", "bind :7070 proto", "bind "+front+" proto", "connect port 7071", "connect port "+httpPort, "inter 2s", "inter 100ms",
		"replica-1:7070", address, "replica-2:7070", address, "replica-3:7070", address)
	if said, err := exec.CommandContext(t.Context(), "haproxy", "-c", "-f", config).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	beginProxy(t, "haproxy", "-db", "-f", config)
	conn := dial(t, front)
	queues, jobs, leases := pb.NewQueueServiceClient(conn), pb.NewJobServiceClient(conn), pb.NewLeaseServiceClient(conn)
	eventually(t, "a call through HAProxy", func() bool {
		_, err := queues.CreateQueue(t.Context(), &pb.CreateQueueRequest{Queue: &pb.Queue{Name: "q"}})
		return err == nil
	})
	got := make(chan *pb.AcquireLeaseResponse, 1)
	go func() {
		resp, err := leases.AcquireLease(t.Context(), &pb.AcquireLeaseRequest{Queues: []string{"q"}, LeaseOwner: "w/1", Wait: durationpb.New(time.Minute)})
		if err != nil {
			t.Error(err)
		}
		got <- resp
	}()
	eventually(t, "a parked poll", func() bool {
		_, body := get(t, "http://"+httpAddress+"/metrics")
		return strings.Contains(body, "\nleasehold_parked_polls 1\n")
	})
	if _, err := jobs.Enqueue(t.Context(), &pb.EnqueueRequest{Queue: "q"}); err != nil {
		t.Fatal(err)
	}
	resp := <-got
	// Two checks that fail would have taken the replicas out by now.
	checked := time.NewTimer(time.Second)
	defer checked.Stop()
	<-checked.C
	if len(resp.GetLeases()) != 1 {
		t.Fatal(resp)
	}
	token := resp.GetLeases()[0].GetLeaseToken()
	if _, err := leases.Heartbeat(t.Context(), &pb.HeartbeatRequest{LeaseToken: token}); err != nil {
		t.Error(err)
	}
	if _, err := leases.Complete(t.Context(), &pb.CompleteRequest{LeaseToken: token}); err != nil {
		t.Error(err)
	}
}

// TestPgBouncerSample: PgBouncer takes the file, and the service works behind it with its two URLs.
func TestPgBouncerSample(t *testing.T) {
	t.Parallel()
	direct := pgtest.Database(t, nil)
	u, err := url.Parse(direct)
	if err != nil {
		t.Fatal(err)
	}
	password, _ := u.User.Password()
	cfg, err := pgx.ParseConfig(direct)
	if err != nil {
		t.Fatal(err)
	}
	users := sample(t, "pgbouncer/pgbouncer.ini") // a folder that the pooler's user may read
	if err := os.WriteFile(users, []byte(`"`+u.User.Username()+`" "`+password+`"`), 0o644); err != nil {
		t.Fatal(err)
	}
	front := freeAddress(t)
	host, port, _ := strings.Cut(front, ":")
	database := strings.TrimPrefix(u.Path, "/")
	config := sample(t, "pgbouncer/pgbouncer.ini", "leasehold = host=postgres port=5432 dbname=leasehold",
		database+" = host="+cfg.Host+" port="+strings.TrimPrefix(u.Port(), ":")+" dbname="+database,
		"listen_addr = 0.0.0.0", "listen_addr = "+host, "listen_port = 6432", "listen_port = "+port, "/etc/pgbouncer/userlist.txt", users)
	beginProxy(t, "pgbouncer", config)
	u.Host, u.RawQuery = front, "sslmode=disable"
	p := beginService(t, "serve", "--database-url", u.String(), "--direct-database-url", direct)
	address, _ := p.addresses(t)
	conn := dial(t, address)
	if _, err := pb.NewQueueServiceClient(conn).CreateQueue(t.Context(), &pb.CreateQueueRequest{Queue: &pb.Queue{Name: "q"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := pb.NewJobServiceClient(conn).Enqueue(t.Context(), &pb.EnqueueRequest{Queue: "q"}); err != nil {
		t.Fatal(err)
	}
	resp, err := pb.NewLeaseServiceClient(conn).AcquireLease(t.Context(), &pb.AcquireLeaseRequest{Queues: []string{"q"}, LeaseOwner: "w/1"})
	if err != nil || len(resp.GetLeases()) != 1 {
		t.Fatal(resp, err)
	}
}
