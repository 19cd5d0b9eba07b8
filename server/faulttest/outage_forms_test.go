package faulttest

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/internal/faultproxy"
	"github.com/leasehold/leasehold/internal/privatepg"
	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
)

const (
	// outageLease is the length of the leases that live through an outage, outageLasts that
	// of the outage.
	outageLease = 6 * time.Second
	outageLasts = 4 * outageLease
	// outageSweep is the watcher's interval.
	outageSweep = time.Second
	// outageGrace is how long after an outage nobody is blamed (R35).
	outageGrace = max(5*time.Second, outageLease/2)
)

// outage is a service in whose outage leases run out.
type outage struct {
	*fleet
	pg *privatepg.Server // nil where the tests' shared server will do
}

// outageForm is a way in which the service can take no heartbeats.
type outageForm struct {
	name string
	// ownServer: the database server itself is what fails.
	ownServer  bool
	begin, end func(*testing.T, *outage)
}

var outageForms = []outageForm{
	{name: "PostgreSQL_shut_down", ownServer: true, begin: func(t *testing.T, o *outage) {
		mustDo(t, o.pg.Halt(t.Context()))
	}, end: func(t *testing.T, o *outage) {
		mustDo(t, o.pg.Restart(t.Context()))
	}},
	{name: "PostgreSQL_frozen", ownServer: true, begin: func(t *testing.T, o *outage) {
		mustDo(t, o.pg.Freeze())
	}, end: func(t *testing.T, o *outage) {
		mustDo(t, o.pg.Thaw())
	}},
	{name: "network_swallows_all", begin: func(_ *testing.T, o *outage) {
		o.swallow(true)
	}, end: func(_ *testing.T, o *outage) {
		o.swallow(false)
	}},
	{name: "all_replicas_killed", begin: func(_ *testing.T, o *outage) {
		for _, m := range o.members {
			m.Kill()
		}
	}, end: func(t *testing.T, o *outage) {
		o.startTogether(t)
	}},
}

// TestR35_NobodyIsBlamedForAnOutage: while the service can take no heartbeats for four times
// the length of 500 leases, whatever takes it away, no holder that is there afterwards loses
// its lease or an attempt, and the jobs of the holders that are not come back soon.
func TestR35_NobodyIsBlamedForAnOutage(t *testing.T) {
	t.Parallel()
	for _, form := range outageForms {
		t.Run(form.name, func(t *testing.T) {
			t.Parallel()
			newOutage(t, form).through(t, form)
		})
	}
}

func newOutage(t *testing.T, form outageForm) *outage {
	t.Helper()
	o := &outage{}
	var url string
	if form.ownServer {
		o.pg = pgtest.Server(t)
		url = o.pg.URL("postgres")
		mustDo(t, migrate(t.Context(), url))
	} else {
		url = database(t)
	}
	o.fleet = newFleet(t, url, 3, "--watcher-interval", outageSweep.String())
	o.makeQueue(t)
	return o
}

func (o *outage) makeQueue(t *testing.T) {
	t.Helper()
	accepted(t, o.members[0].queues.CreateQueue, &pb.CreateQueueRequest{Queue: &pb.Queue{
		Name: "q", Policy: &pb.JobPolicy{LeaseDuration: durationpb.New(outageLease)},
	}})
}

// heldLeases are 500 leases by what their holders do.
type heldLeases struct {
	batched, single    []*pb.Lease // go on sending heartbeats
	doneTogether, done []*pb.Lease // finish their work in the outage, and say so until they are heard
	dead               []*pb.Lease // their workers die before they send any
	living, jobsOfDead []string
}

// batchSize is how many leases one worker holds that sends batches.
const batchSize = 25

// inBatches calls start with the leases of each worker that sends batches.
func inBatches(leases []*pb.Lease, start func(first int, leases []*pb.Lease)) {
	for i := 0; i < len(leases); i += batchSize {
		start(i/batchSize, leases[i:i+batchSize])
	}
}

func (o *outage) hold(t *testing.T) *heldLeases {
	t.Helper()
	jobs := &pb.BatchEnqueueRequest{}
	for range 500 {
		jobs.Items = append(jobs.Items, &pb.EnqueueRequest{Queue: "q"})
	}
	accepted(t, o.members[0].jobs.BatchEnqueue, jobs)
	lease := func(n int) []*pb.Lease {
		resp := accepted(t, o.members[1].leases.AcquireLease, &pb.AcquireLeaseRequest{
			Queues: []string{"q"}, LeaseOwner: "worker-1", MaxJobs: to(int32(n)),
		})
		if len(resp.GetLeases()) != n {
			t.Fatalf("%d leases, want %d", len(resp.GetLeases()), n)
		}
		return resp.GetLeases()
	}
	h := &heldLeases{batched: lease(150), single: lease(150), doneTogether: lease(75), done: lease(75), dead: lease(50)}
	for _, leases := range [][]*pb.Lease{h.batched, h.single, h.doneTogether, h.done} {
		h.living = append(h.living, idsOf(leases)...)
	}
	h.jobsOfDead = idsOf(h.dead)
	return h
}

// through takes the service and 500 leases through an outage.
func (o *outage) through(t *testing.T, form outageForm) {
	h := o.hold(t)
	c := newCrew(t, o.fleet, outageLease)
	c.renewEach(h.single)
	inBatches(h.batched, c.renewTogether)
	eventually(t, "all holders have sent a heartbeat", func() bool {
		return o.number(t, `SELECT count(*) FROM leasehold.jobs WHERE beats > 0`) == int64(len(h.batched)+len(h.single))
	})
	form.begin(t, o)
	began := time.Now()
	c.completeEach(h.done)
	inBatches(h.doneTogether, c.completeTogether)
	o.turnsRed(t)
	awaitTime(t, began.Add(outageLasts))
	form.end(t, o)
	o.turnsGreen(t)
	since := o.writableSince(t)
	if since.Before(began.Add(outageLasts - time.Second)) {
		t.Fatalf("the outage went on until %s, and heartbeats are said to have been possible since %s", began.Add(outageLasts), since)
	}
	o.wantDeadBack(t, h, since)
	eventually(t, "those who were done are heard", func() bool {
		return o.number(t, `SELECT count(*) FROM leasehold.finished_jobs WHERE state = 4`) >= int64(99*len(append(h.done, h.doneTogether...))/100)
	})
	o.wantLivingUnharmed(t, h, c)
}

// wantDeadBack waits until the jobs of the dead are ready again, and checks when that was:
// not within the grace, and at most duration and two sweeps after it.
func (o *outage) wantDeadBack(t *testing.T, h *heldLeases, since time.Time) {
	t.Helper()
	eventually(t, "the jobs of dead workers come back", func() bool {
		return o.number(t, `SELECT count(*) FROM leasehold.all_jobs WHERE id = ANY ($1::text[]::bigint[]) AND state = 'PENDING' AND attempts_used = 1`,
			h.jobsOfDead) == int64(len(h.jobsOfDead))
	})
	first := o.time(t, `SELECT min(ended_at) FROM leasehold.all_leases WHERE ended_by = 'EXPIRED'`)
	last := o.time(t, `SELECT max(ended_at) FROM leasehold.all_leases WHERE ended_by = 'EXPIRED' AND job_id = ANY ($1::text[]::bigint[])`, h.jobsOfDead)
	t.Logf("jobs of dead workers came back %v to %v after heartbeats were possible again", first.Sub(since), last.Sub(since))
	if first.Before(since.Add(outageGrace)) {
		t.Errorf("a lease was ended %v after heartbeats were possible again, the grace is %v", first.Sub(since), outageGrace)
	}
	// A machine that stands still for seconds is an outage of its own, and moves "since".
	if since = o.writableSince(t); last.After(since.Add(outageGrace + outageLease + 2*outageSweep)) {
		t.Errorf("the last of them came back %v after heartbeats were possible again", last.Sub(since))
	}
}

// wantLivingUnharmed checks that at least 99 of 100 living holders have kept their lease or
// completed, and that none of these was charged an attempt.
func (o *outage) wantLivingUnharmed(t *testing.T, h *heldLeases, c *crew) {
	t.Helper()
	kept := o.number(t, `SELECT count(*) FROM leasehold.all_jobs WHERE id = ANY ($1::text[]::bigint[])
    AND state IN ('PROCESSING', 'COMPLETED') AND lease_no = 1 AND attempts_used = 0 AND expirations = 0`, h.living)
	if all := int64(len(h.living)); kept*100 < all*99 {
		t.Errorf("%d of %d holders kept their lease or completed; %s", kept, all, c.told())
	}
}

// turnsRed waits until every replica says that it is not ready, and why, while it lives.
func (o *outage) turnsRed(t *testing.T) {
	t.Helper()
	for _, m := range o.members {
		select {
		case <-m.Ended():
			continue // killed: it says nothing
		default:
		}
		eventually(t, "an unready replica that names the database", func() bool {
			ready, why := m.probe("/readyz")
			return !ready && strings.Contains(why, "database")
		})
		if alive, why := m.probe("/healthz"); !alive {
			t.Errorf("a replica without database counts as dead: %s", why)
		}
	}
}

// turnsGreen waits until every replica is ready.
func (o *outage) turnsGreen(t *testing.T) {
	t.Helper()
	for _, m := range o.members {
		eventually(t, "a replica that is ready again", func() bool {
			ready, _ := m.probe("/readyz")
			return ready
		})
	}
}

// swallow takes the network between every replica and the database away, or heals it.
func (o *outage) swallow(on bool) {
	for _, m := range o.members {
		m.inner.Swallow(faultproxy.ToServer, on)
		m.inner.Swallow(faultproxy.ToClient, on)
	}
}

// startTogether starts replicas that have ended, in the same moment.
func (f *fleet) startTogether(t *testing.T) {
	t.Helper()
	var starting sync.WaitGroup
	for _, m := range f.members {
		starting.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if err := m.Start(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	starting.Wait()
}

// probe asks the HTTP port for a path, and tells whether the answer was 200.
func (m *member) probe(path string) (ok bool, said string) {
	client := &http.Client{Timeout: callTime}
	defer client.CloseIdleConnections()
	resp, err := client.Get("http://" + m.HTTP() + path)
	if err != nil {
		return false, ""
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return err == nil && resp.StatusCode == http.StatusOK, string(body)
}

// number reads one number from the database.
func (f *fleet) number(t *testing.T, sql string, args ...any) int64 {
	t.Helper()
	return look[int64](t, f, sql, args...)
}

// time reads one time from the database.
func (f *fleet) time(t *testing.T, sql string, args ...any) time.Time {
	t.Helper()
	return look[time.Time](t, f, sql, args...)
}

// writableSince is since when heartbeats have been possible, as the service knows it.
func (f *fleet) writableSince(t *testing.T) time.Time {
	t.Helper()
	return f.time(t, `SELECT writable_since FROM leasehold.service`)
}

// awaitTime waits for a moment: a fault lasts as long as it lasts.
func awaitTime(t *testing.T, at time.Time) {
	t.Helper()
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
	}
}

func mustDo(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
