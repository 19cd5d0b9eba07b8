//go:build workers

package workerstest

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/internal/faultproxy"
	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
	"github.com/leasehold/leasehold/internal/replica"
	"github.com/leasehold/leasehold/internal/testca"
	"github.com/leasehold/leasehold/store/postgres/backdoor"
)

const (
	sidecarJobs = 240
	// sidecarLease outlives the silence after which a connection is taken for dead (15 s): a lease
	// that runs out all the same has lost its heartbeats in the sidecar.
	sidecarLease = 30 * time.Second
)

// allRights lets the sidecar's certificate do all that workers and this test do.
const allRights = `certificates:
  - {name: sidecar, subject: "cn:sidecar", grants: {worker: ["*"], producer: ["*"], operator: ["*"]}, payloads: true}
`

// besideWorld is a service of two replicas that demand TLS and a client's certificate, a proxy before
// each, and one sidecar, which alone has a certificate.
type besideWorld struct {
	*world
	replicas []*replica.Replica
	ways     []*faultproxy.Proxy
	socket   string
	args     []string
	sidecar  *process
}

func newBesideWorld(t *testing.T) *besideWorld {
	t.Helper()
	build(t)
	url := pgtest.Database(t, migrate)
	b := &besideWorld{world: &world{t: t, db: backdoor.Open(t, url)}}
	ca, dir := testca.New(t, "authority"), t.TempDir()
	cert, key := ca.Cert(t, dir, testca.Spec{CN: "service"})
	access := filepath.Join(dir, "access.yaml")
	if err := os.WriteFile(access, []byte(allRights), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var upstream []string
	for range 2 {
		r, err := replica.Start(ctx, replica.Config{Binary: binaries.service, DatabaseURL: url, Dir: t.TempDir(), Args: []string{
			"--tls-cert", cert, "--tls-key", key, "--tls-client-ca", ca.File, "--access-file", access,
		}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Kill)
		way, err := faultproxy.New(r.GRPC())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(way.Close)
		b.replicas, b.ways, upstream = append(b.replicas, r), append(b.ways, way), append(upstream, way.Addr())
	}
	b.db.SetWritable(t, time.Hour, 0)
	short, err := os.MkdirTemp("", "lh-") // the path of a socket has at most 100 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(short) })
	b.socket = "unix:" + filepath.Join(short, "s")
	own, ownKey := ca.Cert(t, t.TempDir(), testca.Spec{CN: "sidecar"})
	b.args = []string{"sidecar", "--listen", b.socket, "--http", "127.0.0.1:0", "--upstream", strings.Join(upstream, ","),
		"--tls-ca", ca.File, "--tls-cert", own, "--tls-key", ownKey}
	b.startSidecar()
	b.connect(b.socket)
	return b
}

// startSidecar starts it, and waits until it listens.
func (b *besideWorld) startSidecar() {
	b.t.Helper()
	b.sidecar = start(b.t, "sidecar", append([]string{binaries.service}, b.args...), "", "", 0)
	eventually(b.t, "the sidecar listens", func() bool { return strings.Contains(b.sidecar.said.String(), "sidecar listens") })
}

// TestWorkersBesideASidecar: workers that know nothing of TLS, of two replicas and of broken
// connections work through a sidecar, while a replica, the sidecar and the workers are killed, and
// the ways between are cut and go silent. Every job is completed once, and no lease runs out but
// those of workers that were killed.
func TestWorkersBesideASidecar(t *testing.T) {
	for _, l := range languages {
		if l.name == "go" {
			continue // its runtime does by itself what a sidecar is for
		}
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			b := newBesideWorld(t)
			queue := b.createQueue("beside", sidecarLease, pb.OnExpiry_ON_EXPIRY_REQUEUE)
			jobs, slots := sidecarJobs, 10
			if l.slots > 0 {
				jobs, slots = sidecarJobs/12, l.slots
			}
			b.enqueue(queue, jobs, 1)
			worker := start(t, l.name, []string{l.command(t)}, b.socket, queue, slots)
			progress := func(what string) {
				t.Helper()
				before := b.completed(queue)
				eventually(t, "jobs are completed after "+what, func() bool { return b.completed(queue) > before || b.completed(queue) == jobs })
			}
			progress("the start")
			b.replicas[0].Kill()
			progress("a replica was killed")
			if err := b.replicas[0].Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			b.ways[0].Cut()
			b.ways[1].Cut()
			progress("the ways were cut")
			b.ways[0].Swallow(faultproxy.ToClient, true)
			progress("a replica went silent")
			b.ways[0].Swallow(faultproxy.ToClient, false)
			b.sidecar.signal(syscall.SIGKILL)
			await(t, "the end of the sidecar", b.sidecar.ended)
			b.startSidecar() // on the socket that was left behind
			progress("the sidecar was killed")
			worker.kill()
			killed := worker
			worker = start(t, l.name, []string{l.command(t)}, b.socket, queue, slots)
			eventually(t, "all jobs are completed", func() bool { return b.completed(queue) == jobs })
			worker.drain()
			b.judge(queue, killed)
		})
	}
}

// judge holds the tables to what was promised.
func (b *besideWorld) judge(queue string, killed *process) {
	b.t.Helper()
	m := &team{world: b.world, queue: queue}
	list := m.whoDidWhat()
	total := map[string]int{}
	for _, d := range list {
		total[d.EndedBy] += d.Leases
	}
	b.t.Logf("leases by their end: %v, of the worker that was killed: %v", total, of(list, killed))
	if n := total["EXPIRED"] - of(list, killed)["EXPIRED"]; n != 0 {
		b.t.Errorf("%d leases of living workers ran out", n)
	}
	if n := one[int](b.world, `SELECT count(*)::int FROM leasehold.all_jobs WHERE queue = $1 AND state <> 'COMPLETED'`, queue); n != 0 {
		b.t.Errorf("%d jobs are not completed", n)
	}
	if n := total["COMPLETED"] + total["COMPLETED_LATE"]; n != b.completed(queue) {
		b.t.Errorf("%d leases ended with %d jobs completed", n, b.completed(queue))
	}
}
