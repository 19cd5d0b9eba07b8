package faulttest

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/internal/faultproxy"
	"github.com/leasehold/leasehold/internal/replica"
)

// sqlListeners are the sessions that hear hints of other replicas.
const sqlListeners = `
SELECT pid::text FROM pg_stat_activity
WHERE datname = current_database() AND (query LIKE 'LISTEN leasehold%' OR query LIKE '-- ping%') ORDER BY pid`

const listenerStopped = "the listener for hints of other replicas stopped"

// parked starts a poll and returns once it is parked; the channel gives the ids of its jobs.
func parked(t *testing.T, m *member, queue string) <-chan []string {
	t.Helper()
	before := gauges(t, m)["leasehold_parked_polls"]
	got := make(chan []string, 1)
	ctx := t.Context()
	go func() {
		resp, err := m.leases.AcquireLease(ctx, &pb.AcquireLeaseRequest{
			Queues: []string{queue}, LeaseOwner: "w", MaxJobs: to(int32(1000)), Wait: durationpb.New(time.Minute),
		})
		if err != nil {
			t.Errorf("a parked poll: %v", err)
		}
		got <- idsOf(resp.GetLeases())
	}()
	eventually(t, "a parked poll", func() bool { return gauges(t, m)["leasehold_parked_polls"] > before })
	return got
}

// sqlPlainJob is a job as somebody's own SQL would store it.
const sqlPlainJob = `
WITH job AS (
    INSERT INTO leasehold.jobs (id, queue_id, run_at)
    SELECT nextval('leasehold.job_id_seq'), q.id, now() FROM leasehold.queues q WHERE q.name = $1 RETURNING id
)
INSERT INTO leasehold.job_data (job_id, payload) SELECT id, '' FROM job`

// TestALostListenerIsBackAndJobsStartMeanwhile: NOTIFY is a hint and polling the truth, so
// that a job which nobody hinted at starts all the same.
func TestALostListenerIsBackAndJobsStartMeanwhile(t *testing.T) {
	t.Parallel()
	f := newFleet(t, database(t), 2)
	q := opened(t, f, &pb.Queue{Name: "q"})
	eventually(t, "two listeners", func() bool { return len(lookAll(t, f, sqlListeners)) == 2 })
	for range 3 {
		old := strings.Join(lookAll(t, f, sqlListeners), " ")
		job := parked(t, f.members[1], q)
		f.db.Exec(t, `SELECT pg_terminate_backend(pid::int) FROM (`+sqlListeners+`) l`)
		want := stored(t, f.members[0], 1, &pb.EnqueueRequest{Queue: q})[0]
		if got := <-job; len(got) != 1 || got[0] != want {
			t.Errorf("without a listener the poll got %q, want job %s", got, want)
		}
		job = parked(t, f.members[1], q)
		f.db.Exec(t, sqlPlainJob, q) // nobody hints at it
		if got := <-job; len(got) != 1 {
			t.Errorf("of a job by SQL the poll got %q", got)
		}
		eventually(t, "two other listeners", func() bool {
			now := lookAll(t, f, sqlListeners)
			return len(now) == 2 && !strings.Contains(old, now[0]) && !strings.Contains(old, now[1])
		})
	}
	for _, m := range f.members {
		if n := strings.Count(m.Log(), listenerStopped); n > 6 {
			t.Errorf("the listener stopped %d times though it was ended three times: a hot loop", n)
		}
	}
}

// listeningThrough starts a replica whose listener reaches the database through a proxy of
// its own.
func listeningThrough(t *testing.T, f *fleet) (*member, *faultproxy.Proxy) {
	t.Helper()
	proxy, err := faultproxy.New(hostOf(t, f.db.URL))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	direct, err := proxy.Through(f.db.URL)
	if err != nil {
		t.Fatal(err)
	}
	m := newMember(t, replica.Config{DatabaseURL: f.db.URL, Args: []string{"--direct-database-url", direct}})
	eventually(t, "a listener", func() bool { return len(lookAll(t, f, sqlListeners)) == 1 })
	return m, proxy
}

// TestAHalfOpenListenerIsNoticed: a firewall that has forgotten the connection says nothing,
// whether the listener is idle or was about to listen.
func TestAHalfOpenListenerIsNoticed(t *testing.T) {
	t.Parallel()
	swallow := func(p *faultproxy.Proxy, on bool) {
		p.Swallow(faultproxy.ToServer, on)
		p.Swallow(faultproxy.ToClient, on)
	}
	for name, breakIt := range map[string]func(*fleet, *faultproxy.Proxy){
		"while it is idle": func(_ *fleet, p *faultproxy.Proxy) { swallow(p, true) },
		"while it begins": func(f *fleet, p *faultproxy.Proxy) {
			// What answers the LISTEN is delayed, so that there is time to swallow it.
			p.Delay(faultproxy.ToClient, 300*time.Millisecond)
			listens := make(chan struct{}, 1)
			p.CutAt(faultproxy.ToServer, func(chunk []byte) bool {
				if bytes.Contains(chunk, []byte("LISTEN leasehold")) {
					listens <- struct{}{}
				}
				return false
			})
			f.db.Exec(t, `SELECT pg_terminate_backend(pid::int) FROM (`+sqlListeners+`) l`)
			<-listens
			swallow(p, true)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, database(t), 0)
			m, proxy := listeningThrough(t, f)
			q := opened(t, &fleet{members: []*member{m}}, &pb.Queue{Name: "q"})
			breakIt(f, proxy)
			stops := strings.Count(m.Log(), listenerStopped)
			eventually(t, "the listener gives up", func() bool { return strings.Count(m.Log(), listenerStopped) > stops })
			job := parked(t, m, q)
			f.db.Exec(t, sqlPlainJob, q)
			if got := <-job; len(got) != 1 {
				t.Errorf("the poll got %q", got)
			}
			proxy.Delay(faultproxy.ToClient, 0)
			swallow(proxy, false)
			proxy.Cut()
			eventually(t, "it listens again", func() bool { return len(lookAll(t, f, sqlListeners)) == 1 })
		})
	}
}

// TestHintsOfManyLongNamesArriveAndLargeJobsAreStored: a notification has at most 8,000 bytes.
func TestHintsOfManyLongNamesArriveAndLargeJobsAreStored(t *testing.T) {
	t.Parallel()
	f := newFleet(t, database(t), 2)
	enqueue := &pb.BatchEnqueueRequest{}
	var names []string
	for i := range 100 { // 12,900 bytes of names
		names = append(names, fmt.Sprintf("%03d-%s", i, strings.Repeat("q", 124)))
		opened(t, f, &pb.Queue{Name: names[i]})
		enqueue.Items = append(enqueue.Items, &pb.EnqueueRequest{
			Queue: names[i], Payload: &pb.Payload{Content: &pb.Payload_Data{Data: make([]byte, 20_000)}},
		})
	}
	first, last := parked(t, f.members[1], names[0]), parked(t, f.members[1], names[99])
	for _, r := range accepted(t, f.members[0].jobs.BatchEnqueue, enqueue).GetResults() {
		if r.GetError() != nil {
			t.Fatalf("BatchEnqueue: %v", r.GetError())
		}
	}
	for name, poll := range map[string]<-chan []string{"first": first, "last": last} {
		if got := <-poll; len(got) != 1 {
			t.Errorf("the poll of the %s queue got %q", name, got)
		}
	}
	large := stored(t, f.members[0], 1, &pb.EnqueueRequest{
		Queue: names[5], Payload: &pb.Payload{Content: &pb.Payload_Data{Data: make([]byte, 1<<20)}},
	})
	if got := stateOf(t, f, large[0]); got != "PENDING" {
		t.Errorf("a job of 1 MiB is %s", got)
	}
}
