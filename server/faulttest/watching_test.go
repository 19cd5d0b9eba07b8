package faulttest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/internal/faultproxy"
)

// TestSeriesStayAsManyWhateverClientsSend: each name in a label is a series for ever.
func TestSeriesStayAsManyWhateverClientsSend(t *testing.T) {
	t.Parallel()
	f := newFleet(t, database(t), 1)
	m := f.members[0]
	q := opened(t, f, &pb.Queue{Name: "q"})
	hostile := func(from, to int) {
		for i := from; i < to; i++ {
			name := fmt.Sprint("hostile-", i)
			oneOfEach(t, m, q, name)
			_, _ = m.jobs.Enqueue(t.Context(), &pb.EnqueueRequest{Queue: name})
			_, _ = m.leases.AcquireLease(t.Context(), &pb.AcquireLeaseRequest{Queues: []string{name}, LeaseOwner: name})
			_ = m.conn.Invoke(t.Context(), "/leasehold.v1."+name+"/"+name, &pb.GetQueueRequest{}, &pb.GetQueueResponse{})
			stored(t, m, 1, &pb.EnqueueRequest{Queue: q, Subject: &name})
			for _, l := range taken(t, m, q, 1, time.Hour) {
				_, _ = m.leases.Fail(t.Context(), &pb.FailRequest{LeaseToken: l.GetLeaseToken(), Permanent: true, Error: &pb.JobError{Code: name, Message: name}})
			}
		}
	}
	hostile(0, 5) // each code of each method has its series then
	before := len(gauges(t, m))
	hostile(5, 105)
	after := gauges(t, m)
	for name := range after {
		if strings.Contains(name, "hostile") {
			t.Errorf("a client's word in a series: %s", name)
		}
	}
	// What the background measures has its series from its first pass on, and is little.
	if more := len(after) - before; more > 50 {
		t.Errorf("a hundred names of queues, workers, methods and errors made %d series", more)
	}
}

// TestReadinessTurnsRedForEachThatStopsTheWork, and green again without a restart. An
// orchestrator that looks at /healthz must not restart replicas for it.
func TestReadinessTurnsRedForEachThatStopsTheWork(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		stop, mend func(*testing.T, *fleet)
		says       string
	}{
		"the database answers nothing": {
			func(_ *testing.T, f *fleet) { f.members[0].inner.Swallow(faultproxy.ToClient, true) },
			func(_ *testing.T, f *fleet) { f.members[0].inner.Swallow(faultproxy.ToClient, false) }, "",
		},
		"the database refuses": {
			func(_ *testing.T, f *fleet) { f.members[0].inner.Refuse(true); f.members[0].inner.Cut() },
			func(_ *testing.T, f *fleet) { f.members[0].inner.Refuse(false) }, "not available",
		},
		"no sweep is finished": {
			func(t *testing.T, f *fleet) {
				t.Helper()
				f.db.Exec(t, `CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$`)
				f.db.Exec(t, `CREATE TRIGGER refuse BEFORE UPDATE ON leasehold.service FOR EACH ROW WHEN (NEW.swept_at > OLD.swept_at) EXECUTE FUNCTION public.refuse()`)
			},
			func(t *testing.T, f *fleet) { t.Helper(); f.db.Exec(t, `DROP TRIGGER refuse ON leasehold.service`) }, "the watcher's last finished sweep",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, database(t), 1, "--watcher-interval", "300ms")
			m := f.members[0]
			health := grpc_health_v1.NewHealthClient(m.conn)
			serves := func() bool {
				resp, err := health.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
				return err == nil && resp.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVING
			}
			pid := m.PID()
			c.stop(t, f)
			eventually(t, "it is not ready", func() bool { return saysWhyNot(m, c.says) })
			eventually(t, "it does not serve, says gRPC", func() bool { return !serves() })
			if got := gauges(t, m)["leasehold_ready"]; got != 0 {
				t.Errorf("by its metrics it is ready: %v", got)
			}
			if code, body := ask(m, "/healthz"); code != 200 {
				t.Errorf("/healthz: %d %s", code, body)
			}
			c.mend(t, f)
			eventually(t, "it is ready", func() bool { return isReady(m) })
			eventually(t, "it serves, says gRPC", serves)
			if m.PID() != pid {
				t.Error("it was started anew")
			}
		})
	}
}

// TestEachEndOfALeaseHasItsOwnWord, and the record of a lease tells who held it, since when,
// when it was last heard of, and when and how it ended.
func TestEachEndOfALeaseHasItsOwnWord(t *testing.T) {
	t.Parallel()
	f := newFleet(t, database(t), 1, "--watcher-interval", "200ms")
	m := f.members[0]
	q := opened(t, f, &pb.Queue{Name: "q", StallEndsLease: true, Policy: &pb.JobPolicy{MaxAttempts: to(int32(1))}})
	stall := opened(t, f, &pb.Queue{Name: "stall", StallEndsLease: true, Policy: &pb.JobPolicy{StallTimeout: durationpb.New(time.Second)}})
	limited := opened(t, f, &pb.Queue{Name: "limited", Policy: &pb.JobPolicy{MaxRuntime: durationpb.New(2 * time.Second)}})
	mayExpire(t, f)
	take := func(queue string, length time.Duration) *pb.Lease {
		stored(t, m, 1, &pb.EnqueueRequest{Queue: queue})
		l := taken(t, m, queue, 1, length)[0]
		accepted(t, m.leases.Heartbeat, &pb.HeartbeatRequest{LeaseToken: l.GetLeaseToken()})
		return l
	}
	over := func(l *pb.Lease) *pb.Lease {
		eventually(t, "the lease is over", func() bool { return stateOf(t, f, l.GetJob().GetJobId()) != "PROCESSING" })
		return l
	}
	is := map[string]*pb.Lease{}
	is["COMPLETED"] = take(q, time.Hour)
	accepted(t, m.leases.Complete, &pb.CompleteRequest{LeaseToken: is["COMPLETED"].GetLeaseToken()})
	is["FAILED"] = take(q, time.Hour)
	accepted(t, m.leases.Fail, &pb.FailRequest{LeaseToken: is["FAILED"].GetLeaseToken()})
	is["FAILED_PERMANENTLY"] = take(q, time.Hour)
	accepted(t, m.leases.Fail, &pb.FailRequest{LeaseToken: is["FAILED_PERMANENTLY"].GetLeaseToken(), Permanent: true})
	is["RELEASED"] = take(stall, time.Hour)
	accepted(t, m.leases.Release, &pb.ReleaseRequest{LeaseToken: is["RELEASED"].GetLeaseToken(), Delay: durationpb.New(time.Hour)})
	is["EXPIRED"] = over(take(q, time.Second))
	late := over(take(q, time.Second))
	accepted(t, m.leases.Complete, &pb.CompleteRequest{LeaseToken: late.GetLeaseToken()})
	is["COMPLETED_LATE"] = late
	is["STALLED"] = over(take(stall, time.Hour))
	is["OVERRAN"] = over(take(limited, time.Hour))
	cancelled := take(q, time.Hour)
	accepted(t, m.jobs.CancelJob, &pb.CancelJobRequest{JobId: cancelled.GetJob().GetJobId(), Actor: "on-call", Note: "why"})
	if _, err := m.leases.Fail(t.Context(), &pb.FailRequest{LeaseToken: cancelled.GetLeaseToken()}); status.Code(err) != codes.OK {
		t.Error(err)
	}
	for end, l := range is {
		wantRecord(t, m, l, "LEASE_END_"+end, false)
	}
	wantRecord(t, m, cancelled, "LEASE_END_FAILED", true)
	acts := accepted(t, m.jobs.GetJob, &pb.GetJobRequest{By: &pb.GetJobRequest_JobId{JobId: cancelled.GetJob().GetJobId()}, RecentLeases: to(int32(1))}).GetOperatorActs()
	if len(acts) != 1 || acts[0].GetActor() != "on-call" || acts[0].GetAct() != "cancel" {
		t.Errorf("the cancel is on record as %v", acts)
	}
	wantSound(t, f, false)
}

func wantRecord(t *testing.T, m *member, l *pb.Lease, end string, cancelled bool) {
	t.Helper()
	records := accepted(t, m.jobs.ListLeases, &pb.ListLeasesRequest{JobId: l.GetJob().GetJobId()}).GetLeases()
	var r *pb.LeaseRecord
	for _, one := range records {
		if one.GetLeaseNo() == l.GetLeaseNo() {
			r = one
		}
	}
	began, beat, ended := r.GetLeasedAt().AsTime(), r.GetLastBeatAt().AsTime(), r.GetEndedAt().AsTime()
	if r.GetEnd().String() != end || r.GetCancelled() != cancelled || r.GetLeaseOwner() != "w" || r.GetBeats() != 1 {
		t.Errorf("the lease that ended as %s (cancelled: %t) is on record as %v", end, cancelled, r)
	}
	if beat.Before(began) || ended.Before(beat) {
		t.Errorf("%s: it began at %v, was heard of last at %v and ended at %v", end, began, beat, ended)
	}
}
