package faulttest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/internal/faultproxy"
	"github.com/leasehold/leasehold/server/servertest/remote"
	"github.com/leasehold/leasehold/store"
)

const (
	// doomed is how many polls of a round go before the job comes.
	doomed = 30
	// livePickup is far above what a waiting worker needs, and far below the lease of a job
	// that went to a dead one.
	livePickup = 20 * time.Second
)

// TestDeadPollersGetNothing: of many workers that wait for a job all but one go away, as
// processes that are killed, by closing their connection, or by giving up the call. The next
// job is the living one's. Where they had gone before it came, no lease was ever made for
// them; where they go in that moment, the service takes such a lease back by itself, or, if
// the answer was on its way already, it runs out.
func TestDeadPollersGetNothing(t *testing.T) {
	t.Parallel()
	for name, lease := range map[string]time.Duration{"gone_before_the_job_comes": time.Hour, "gone_as_the_job_comes": 3 * time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t, 2, []store.Queue{queueOf("q", lease)}, "--watcher-interval", "100ms")
			for round := range 4 {
				s.deadPollers(t, round, lease == time.Hour)
			}
		})
	}
}

func (s *scene) deadPollers(t *testing.T, round int, before bool) {
	t.Helper()
	m := s.fleet.members[round%2]
	d := newDoomed(t, m)
	live := make(chan *pb.AcquireLeaseResponse, 1)
	go func() {
		resp, err := m.leases.AcquireLease(t.Context(), pollFor("live", time.Minute))
		if err != nil {
			t.Error(err)
		}
		live <- resp
	}()
	parked := func(n float64) {
		t.Helper()
		eventually(t, fmt.Sprint(n, " polls are parked"), func() bool { return m.metric(t, "leasehold_parked_polls") == n })
	}
	parked(doomed + 1)
	c := s.remote(t, (round+1)%2)
	if before {
		d.end()
		parked(1)
	} else {
		go d.end()
	}
	id := s.enqueued(t, c, 1, store.NewJob{Queue: "q"})[0]
	since := time.Now()
	resp := <-live
	if len(resp.GetLeases()) != 1 || time.Since(since) > livePickup {
		t.Fatalf("the living worker waited %s for %d leases", time.Since(since), len(resp.GetLeases()))
	}
	token := resp.GetLeases()[0].GetLeaseToken()
	accepted(t, m.leases.Complete, &pb.CompleteRequest{LeaseToken: token})
	for _, l := range s.records(t, id) {
		if l.Owner == "live" {
			continue
		}
		if before || l.End != store.EndUndelivered && l.End != store.EndExpired {
			t.Errorf("a lease of %q ended as %d, counted: %t", l.Owner, l.End, l.Counted)
		}
	}
	d.polls.Wait()
}

func pollFor(owner string, wait time.Duration) *pb.AcquireLeaseRequest {
	return &pb.AcquireLeaseRequest{Queues: []string{"q"}, LeaseOwner: owner, Wait: durationpb.New(wait)}
}

// doomedPolls are parked, and end all at once in three ways.
type doomedPolls struct {
	polls  sync.WaitGroup
	killed *faultproxy.Proxy // between the workers that are killed and the replica
	closed []*grpc.ClientConn
	giveUp context.CancelFunc
}

func newDoomed(t *testing.T, m *member) *doomedPolls {
	t.Helper()
	d := &doomedPolls{}
	var err error
	if d.killed, err = faultproxy.New(m.GRPC()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.killed.Close)
	ctx, cancel := context.WithCancel(t.Context())
	d.giveUp = cancel
	for n := range doomed {
		conn, call := m.conn, ctx
		switch n % 3 {
		case 0:
			conn, call = dial(t, d.killed.Addr()), t.Context()
		case 1:
			conn, call = dial(t, m.outer.Addr()), t.Context()
			d.closed = append(d.closed, conn)
		}
		d.polls.Go(func() {
			resp, err := pb.NewLeaseServiceClient(conn).AcquireLease(call, pollFor(fmt.Sprint("doomed-", n%3), time.Minute))
			if err == nil {
				t.Errorf("a poll that was to end is answered: %v", resp)
			}
		})
	}
	return d
}

func (d *doomedPolls) end() {
	d.killed.Close() // as the system does with the sockets of a process that is killed
	for _, conn := range d.closed {
		_ = conn.Close() // a second time when the test ends
	}
	d.giveUp()
}

// TestBeatsPassWhereOtherThingsBreak: a worker whose poll hangs in a dead connection, one of
// whose three replicas answers nothing, and which loses every third heartbeat to it, keeps
// its leases; and in a batch of heartbeats each lease has its own answer.
func TestBeatsPassWhereOtherThingsBreak(t *testing.T) {
	t.Parallel()
	const n, length = 20, 6 * time.Second
	s := newScene(t, 3, []store.Queue{queueOf("q", length), queueOf("empty", length)}, "--watcher-interval", "100ms")
	var worker [3]store.Store
	for i := range worker {
		worker[i] = s.client(t, i)
	}
	s.enqueued(t, worker[0], n, store.NewJob{Queue: "q"})
	refs := leased(t, worker[0], n, store.Acquire{Queues: []string{"q"}, Owner: "w"})
	pollHangs := s.hangAPoll(t)

	broken := s.fleet.members[2].outer
	broken.Swallow(faultproxy.ToServer, true)
	start := time.Now()
	var lost sync.WaitGroup
	tick := time.NewTicker(length / 4)
	defer tick.Stop()
	for i := 0; time.Since(start) < 2*length; i++ {
		<-tick.C
		if i%3 == 2 { // hangs, and must not hold up the next
			lost.Go(func() { s.beatAll(t, worker[2], refs, length/2) })
			continue
		}
		s.beatAll(t, worker[i%3], refs, callTime)
	}
	broken.Cut()
	broken.Swallow(faultproxy.ToServer, false)
	lost.Wait()
	s.wantAnswersOfItsOwn(t, refs)
	pollHangs()
	s.judge(t)
}

// hangAPoll parks a poll in a connection that then says nothing any more.
func (s *scene) hangAPoll(t *testing.T) (end func()) {
	t.Helper()
	m := s.fleet.members[0]
	way, err := faultproxy.New(m.GRPC())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(way.Close)
	leases, ended := pb.NewLeaseServiceClient(dial(t, way.Addr())), make(chan struct{})
	go func() {
		defer close(ended)
		req := pollFor("w", time.Minute)
		req.Queues = []string{"empty"}
		_, _ = leases.AcquireLease(t.Context(), req)
	}()
	eventually(t, "the poll is parked", func() bool { return m.metric(t, "leasehold_parked_polls") == 1 })
	way.Swallow(faultproxy.ToClient, true)
	way.Swallow(faultproxy.ToServer, true)
	return func() { way.Close(); <-ended }
}

// beatAll sends one batch of heartbeats; what became of them is judged in the end.
func (s *scene) beatAll(t *testing.T, by store.Store, refs []store.LeaseRef, patience time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	items := make([]store.Heartbeat, len(refs))
	for i, ref := range refs {
		items[i].Lease = ref
	}
	_, _ = by.Heartbeat(ctx, items)
}

// wantAnswersOfItsOwn makes one lease of a batch lost, one cancelled and one unknown.
func (s *scene) wantAnswersOfItsOwn(t *testing.T, refs []store.LeaseRef) {
	t.Helper()
	c := s.client(t, 1)
	for _, ref := range refs {
		if l := s.records(t, ref.JobID); len(l) != 1 || l[0].End != store.EndNone {
			t.Fatalf("lease %v was lost: %+v", ref, l)
		}
	}
	if _, err := failWith(t, c, store.Fail{Lease: refs[3], RetryAfter: to(time.Duration(0))}); err != nil {
		t.Fatal(err)
	}
	leased(t, c, 1, store.Acquire{JobID: refs[3].JobID, Owner: "another"})
	if _, err := c.CancelJob(t.Context(), refs[7].JobID, store.Actor{Name: "ops"}); err != nil {
		t.Fatal(err)
	}
	items := make([]store.Heartbeat, len(refs)+1)
	for i, ref := range refs {
		items[i].Lease = ref
	}
	items[len(refs)].Lease = store.LeaseRef{JobID: remote.JobID("999999"), LeaseNo: 1}
	out, err := c.Heartbeat(t.Context(), items)
	if err != nil {
		t.Fatal(err)
	}
	for i, o := range out {
		right := o.Err == nil && o.CancelRequested == (i == 7)
		switch i {
		case 3:
			right = isError[*store.SupersededError](o.Err)
		case len(refs):
			right = isError[*store.JobNotFoundError](o.Err)
		}
		if !right {
			t.Errorf("heartbeat %d is answered %+v", i, o)
		}
	}
}
