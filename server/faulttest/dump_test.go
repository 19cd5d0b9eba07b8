package faulttest

import (
	"bytes"
	"context"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/internal/privatepg"
	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
)

// restored makes a database from a dump of another, taken as it is now.
func restored(t *testing.T, from string) (to string) {
	t.Helper()
	bin, err := privatepg.Find()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var complaints bytes.Buffer
	dump := exec.CommandContext(ctx, filepath.Join(bin.Dir, "pg_dump"), "--dbname", from)
	dump.Stderr = &complaints
	text, err := dump.Output()
	if err != nil {
		t.Fatalf("pg_dump: %v: %s", err, complaints.String())
	}
	to = pgtest.Database(t, nil)
	restore := exec.CommandContext(ctx, filepath.Join(bin.Dir, "psql"), "--dbname", to, "--quiet", "--no-psqlrc", "--set", "ON_ERROR_STOP=1")
	restore.Stdin, restore.Stderr = bytes.NewReader(text), &complaints
	if err := restore.Run(); err != nil {
		t.Fatalf("psql: %v: %s", err, complaints.String())
	}
	return to
}

// TestADumpTakenMidRunIsServedAndSettles: after a restore nobody that held a lease need be
// alive, and none of the rows may be left in a state that no query finds.
func TestADumpTakenMidRunIsServedAndSettles(t *testing.T) {
	t.Parallel()
	f := newFleet(t, database(t), 1, "--watcher-interval", "300ms")
	m := f.members[0]
	q := opened(t, f, &pb.Queue{Name: "q"})
	stored(t, m, 200, &pb.EnqueueRequest{Queue: q, Payload: &pb.Payload{Content: &pb.Payload_Json{Json: `{"a":1}`}}})
	keyed := stored(t, m, 1, &pb.EnqueueRequest{Queue: q, IdempotencyKey: to("k")})[0]
	held := taken(t, m, q, 50, time.Hour)[0]

	stop, began := make(chan struct{}), make(chan struct{})
	var crew sync.WaitGroup
	var once sync.Once
	for range 4 {
		crew.Go(func() { workUntil(t, m, q, stop, func() { once.Do(func() { close(began) }) }) })
	}
	<-began
	second := newFleet(t, restored(t, f.db.URL), 1, "--watcher-interval", "300ms")
	close(stop)
	crew.Wait()

	// The key of the tokens came along, and so has all that makes calls repeatable.
	accepted(t, second.members[0].leases.Heartbeat, &pb.HeartbeatRequest{LeaseToken: held.GetLeaseToken()})
	accepted(t, second.members[0].leases.Complete, &pb.CompleteRequest{LeaseToken: held.GetLeaseToken()})
	again := accepted(t, second.members[0].jobs.Enqueue, &pb.EnqueueRequest{Queue: q, IdempotencyKey: to("k")})
	if again.GetCreated() || again.GetJobId() != keyed {
		t.Errorf("the key answers %v, want job %s", again, keyed)
	}
	fresh := stored(t, second.members[0], 1, &pb.EnqueueRequest{Queue: q})[0]
	if got := stateOf(t, second, fresh); got != "PENDING" {
		t.Errorf("a new job is %s", got)
	}
	second.db.Exec(t, sqlOverdue)
	mayExpire(t, second)
	eventually(t, "all that was leased is free", func() bool {
		return look[int](t, second, `SELECT count(*)::int FROM leasehold.jobs WHERE state = 2`) == 0
	})
	wantSound(t, second, true)
	if n := look[int](t, second, `SELECT count(*)::int FROM leasehold.all_jobs`); n != 202 {
		t.Errorf("%d jobs came along, want 202", n)
	}
}

// workUntil takes jobs of a queue, one at a time, and completes them, with a beat in between;
// after each it calls done.
func workUntil(t *testing.T, m *member, queue string, stop <-chan struct{}, done func()) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		resp, err := m.leases.AcquireLease(t.Context(), &pb.AcquireLeaseRequest{
			Queues: []string{queue}, LeaseOwner: "w", LeaseDuration: durationpb.New(time.Hour),
		})
		for _, l := range resp.GetLeases() {
			if err == nil {
				_, err = m.leases.Heartbeat(t.Context(), &pb.HeartbeatRequest{LeaseToken: l.GetLeaseToken(), Stage: to("half")})
			}
			if err == nil {
				_, err = m.leases.Complete(t.Context(), &pb.CompleteRequest{LeaseToken: l.GetLeaseToken()})
			}
		}
		if err != nil {
			t.Errorf("a worker: %v", err)
			return
		}
		done()
	}
}
