package faulttest

import (
	"context"
	"math"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

const (
	parkedPolls  = 2000
	parkedPool   = 4
	parkedLeases = 200
	// parkedLease leaves a holder time for six heartbeats: a machine that is busy with other
	// tests must not cost a lease. They come as often as for half of it.
	parkedLease = 12 * time.Second
	// beatBound is what 99 of 100 heartbeats must stay under.
	beatBound = 250 * time.Millisecond
	// beatWindow is how many heartbeats are looked at together.
	beatWindow = 300
)

// TestR10_ParkedPollsTakeNothingFromHeartbeats: 2,000 parked polls hold no connection of a
// pool of four, on which 200 leases are renewed, and leave nothing behind when they go. Nor
// do readers of lists beside them.
func TestR10_ParkedPollsTakeNothingFromHeartbeats(t *testing.T) {
	// Not parallel: what other tests take from the machine would count as the polls'.
	newFleet(t, database(t), 1, parkedArgs...).parkedPollsTakeNothing(t, 100)
}

var parkedArgs = []string{"--pool-size", strconv.Itoa(parkedPool), "--watcher-interval", "1s", "--log-level", "error"}

// parkedPollsTakeNothing parks the polls at the one replica of f over so many connections.
func (f *fleet) parkedPollsTakeNothing(t *testing.T, connections int) {
	t.Helper()
	m := f.members[0]
	c := f.beatingLeases(t)
	before := m.footprint(t)

	polls := parkPolls(t, m, connections)
	f.wantQuickBeats(t, c, "beside parked polls")
	// The connection beyond those of the pool listens for hints.
	if n := f.sessions(t); n > parkedPool+1 {
		t.Errorf("the replica has %d connections to the database, its pool is of %d", n, parkedPool)
	}
	polls.leave()
	before = m.wantFootprint(t, before, firstSlack)

	// A balancer that was restarted: all of them come in the same moment.
	polls = parkPolls(t, m, connections)
	stopReading := m.keepReading(t)
	f.wantQuickBeats(t, c, "beside parked polls and readers")
	stopReading()
	polls.wantJobs(t, m, 20)
	polls.leave()
	m.wantFootprint(t, before, nextSlack)
	f.wantNoLeaseLost(t, c)
}

// beatingLeases makes leases that are renewed, and jobs for the readers of lists.
func (f *fleet) beatingLeases(t *testing.T) *crew {
	t.Helper()
	m := f.members[0]
	for _, name := range []string{"q", "idle", "backlog"} {
		accepted(t, m.queues.CreateQueue, &pb.CreateQueueRequest{Queue: &pb.Queue{Name: name, Policy: policyOf(parkedLease, 0, 0)}})
	}
	for queue, n := range map[string]int{"q": parkedLeases, "backlog": 1000} {
		jobs := &pb.BatchEnqueueRequest{}
		for range n {
			jobs.Items = append(jobs.Items, &pb.EnqueueRequest{Queue: queue})
		}
		accepted(t, m.jobs.BatchEnqueue, jobs)
	}
	leases := accepted(t, m.leases.AcquireLease, &pb.AcquireLeaseRequest{Queues: []string{"q"}, LeaseOwner: "w", MaxJobs: to(int32(parkedLeases))}).GetLeases()
	c := newCrew(t, f, parkedLease/2)
	c.renewEach(leases[:150])
	inBatches(leases[150:], c.renewTogether)
	eventually(t, "all leases are renewed", func() bool {
		return f.number(t, `SELECT count(*) FROM leasehold.jobs WHERE beats > 1`) == parkedLeases
	})
	return c
}

// wantQuickBeats looks at heartbeats until 99 of 100 in a row stay under the bound. One
// stretch in which the machine was busy with something else shows nothing; if heartbeats
// wait for polls or readers, all do.
func (f *fleet) wantQuickBeats(t *testing.T, c *crew, when string) {
	t.Helper()
	c.latencies() // those of before
	var took []time.Duration
	eventually(t, "quick heartbeats "+when, func() bool {
		c.mu.Lock()
		n := len(c.took)
		c.mu.Unlock()
		if n < beatWindow {
			return false
		}
		took = c.latencies()
		t.Logf("%s: heartbeats took p50 %v, p99 %v, max %v", when, took[n/2], took[n*99/100], took[n-1])
		return took[n*99/100] < beatBound
	})
}

func (f *fleet) wantNoLeaseLost(t *testing.T, c *crew) {
	t.Helper()
	live := f.number(t, `SELECT count(*) FROM leasehold.jobs j JOIN leasehold.queues q ON q.id = j.queue_id
    WHERE q.name = 'q' AND j.state = 2 AND j.lease_no = 1 AND j.lease_until > statement_timestamp()`)
	if live != parkedLeases {
		t.Errorf("%d of %d leases live; %s", live, parkedLeases, c.told())
	}
}

// sessions is how many connections to the database others have than the test itself.
func (f *fleet) sessions(t *testing.T) int {
	t.Helper()
	all := f.number(t, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'`)
	return int(all) - int(f.db.SQL.Stat().TotalConns())
}

// pollCrowd are parked polls of many workers.
type pollCrowd struct {
	conns   []*grpc.ClientConn
	cancel  context.CancelFunc
	waiting sync.WaitGroup
	got     chan *pb.Lease
}

// parkPolls parks polls over so many connections at once.
func parkPolls(t *testing.T, m *member, connections int) *pollCrowd {
	t.Helper()
	p := &pollCrowd{got: make(chan *pb.Lease, parkedPolls)}
	var ctx context.Context
	ctx, p.cancel = context.WithCancel(context.Background())
	for range connections {
		p.conns = append(p.conns, dialEagerly(t, m.GRPC()))
	}
	t.Cleanup(p.leave)
	for i := range parkedPolls {
		leases := pb.NewLeaseServiceClient(p.conns[i%connections])
		p.waiting.Go(func() {
			for ctx.Err() == nil {
				resp, err := leases.AcquireLease(ctx, &pb.AcquireLeaseRequest{
					Queues: []string{"idle"}, LeaseOwner: "idle", Wait: durationpb.New(time.Minute),
				})
				for _, l := range resp.GetLeases() {
					p.got <- l
				}
				if err == nil && len(resp.GetLeases()) > 0 {
					return
				}
			}
		})
	}
	eventually(t, "all polls are parked", func() bool { return m.metric(t, "leasehold_parked_polls") == parkedPolls })
	return p
}

// leave ends the polls and their connections.
func (p *pollCrowd) leave() {
	p.cancel()
	p.waiting.Wait()
	for _, conn := range p.conns {
		conn.Close()
	}
}

// wantJobs makes so many jobs, and waits until as many polls have one each.
func (p *pollCrowd) wantJobs(t *testing.T, m *member, n int) {
	t.Helper()
	made := map[string]bool{}
	for range n {
		made[accepted(t, m.jobs.Enqueue, &pb.EnqueueRequest{Queue: "idle"}).GetJobId()] = true
	}
	eventually(t, "parked polls get the jobs", func() bool {
		select {
		case l := <-p.got:
			if !made[l.GetJob().GetJobId()] {
				t.Errorf("job %s was delivered twice, or is nobody's", l.GetJob().GetJobId())
			}
			delete(made, l.GetJob().GetJobId())
		default:
		}
		return len(made) == 0
	})
}

// keepReading has operators read all lists again and again, until the function that it
// returns is called.
func (m *member) keepReading(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var reading sync.WaitGroup
	for range 4 {
		reading.Go(func() {
			for ctx.Err() == nil {
				// Readers get what is left: a refusal here is no fault.
				_, _ = m.leases.ListStuck(ctx, &pb.ListStuckRequest{PageSize: to(int32(1000))})
				_, _ = m.jobs.ListJobs(ctx, &pb.ListJobsRequest{PageSize: to(int32(1000)), View: pb.JobView_JOB_VIEW_FULL})
			}
		})
	}
	return func() {
		cancel()
		reading.Wait()
	}
}

// footprint is what a process needs.
type footprint struct{ goroutines, heap float64 }

// footprint is the least that the process needs over some readings: what waits for the
// garbage collector comes and goes.
func (m *member) footprint(t *testing.T) footprint {
	t.Helper()
	least := footprint{math.Inf(1), math.Inf(1)}
	for range 50 {
		least.goroutines = min(least.goroutines, m.metric(t, "go_goroutines"))
		least.heap = min(least.heap, m.metric(t, "go_memstats_heap_inuse_bytes"))
	}
	return least
}

const (
	// firstSlack is what Go itself keeps after thousands of goroutines have ended: it never
	// gives back what describes one, half a kilobyte each.
	firstSlack = 10 << 20
	// nextSlack is for what is under way in the moment of the reading.
	nextSlack = 3 << 20
)

// wantFootprint waits until the process needs no more than before, but for a twentieth and
// some slack, and returns what it needs.
func (m *member) wantFootprint(t *testing.T, before footprint, slack float64) footprint {
	t.Helper()
	var now footprint
	back := func() bool {
		now = m.footprint(t)
		return now.goroutines <= before.goroutines*1.05+10 && now.heap <= before.heap*1.05+slack
	}
	deadline := time.Now().Add(patience)
	for !back() {
		if time.Now().After(deadline) {
			t.Fatalf("the process needs %+v, before it needed %+v", now, before)
		}
	}
	t.Logf("before: %.0f goroutines, %.1f MiB; after: %.0f, %.1f MiB", before.goroutines, before.heap/(1<<20), now.goroutines, now.heap/(1<<20))
	return now
}

// metric reads one metric that has no labels.
func (m *member) metric(t *testing.T, name string) (value float64) {
	t.Helper()
	eventually(t, "metric "+name, func() (ok bool) {
		value, ok = m.scrape(name)
		return ok
	})
	return value
}

func (m *member) scrape(name string) (value float64, ok bool) {
	_, text := m.probe("/metrics")
	for line := range strings.Lines(text) {
		if text, is := strings.CutPrefix(line, name+" "); is {
			value, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
			return value, err == nil
		}
	}
	return 0, false
}
