package storetest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/leasehold/leasehold/store"
)

// listJobs pages through jobs and gives their ids.
func (e *env) listJobs(f store.JobFilter, p store.Page) (ids []store.JobID) {
	e.Helper()
	for range 200 {
		out, err := e.s.ListJobs(e.ctx, f, false, p)
		if err != nil || len(out.Jobs) > p.Size {
			e.Fatalf("ListJobs: %d jobs, %v", len(out.Jobs), err)
		}
		for _, j := range out.Jobs {
			ids = append(ids, j.ID)
		}
		if p.After = out.Next; out.Next == 0 {
			return ids
		}
	}
	e.Fatalf("the pages do not end")
	return nil
}

var listTests = []contractTest{
	{name: "R4_jobs_by_id_live_and_finished", run: func(e *env) {
		q := e.queue()
		var want []store.JobID
		for i := range 7 {
			id := e.enqueue(q)
			want = append(want, id)
			if i%3 == 1 {
				jobEnds["completed"](e, id)
			}
		}
		for _, size := range []int{1, 2, 7, 100} {
			if got := e.listJobs(store.JobFilter{Queue: &q}, store.Page{Size: size}); !slices.Equal(got, want) {
				e.Fatalf("in pages of %d: listed %v, want %v", size, got, want)
			}
		}
	}},
	{name: "R4_pages_are_stable_while_rows_change", run: func(e *env) {
		q := e.queue()
		var want []store.JobID
		for range 6 {
			want = append(want, e.enqueue(q))
		}
		var got []store.JobID
		p := store.Page{Size: 2}
		for {
			out, err := e.s.ListJobs(e.ctx, store.JobFilter{Queue: &q}, false, p)
			if err != nil {
				e.Fatalf("ListJobs: %v", err)
			}
			for _, j := range out.Jobs {
				got = append(got, j.ID)
				if len(got) <= 6 {
					jobEnds["completed"](e, j.ID) // the row moves
				}
			}
			if p.After = out.Next; out.Next == 0 {
				break
			}
		}
		if !slices.Equal(got, want) {
			e.Fatalf("listed %v, want %v", got, want)
		}
	}},
	{name: "R4_all_that_is_set_in_a_filter_must_hold", run: func(e *env) {
		q, other := e.queue(), e.queue()
		subject := func(s string) func(j *store.NewJob) { return func(j *store.NewJob) { j.Subject = &s } }
		a := e.enqueue(q, subject("payment/1"))
		b := e.lease(q, subject("payment/1")).JobID
		failed := e.lease(q)
		e.fail(store.Fail{Lease: failed, Error: store.JobError{Code: "declined"}, Permanent: true})
		e.enqueue(other, subject("payment/1"))
		old := e.enqueue(q, subject("payment/2"))
		e.age(old, 48*time.Hour)
		day := time.Now().Add(-24 * time.Hour)
		for name, c := range map[string]struct {
			f    store.JobFilter
			want []store.JobID
		}{
			"subject":        {store.JobFilter{Queue: &q, Subject: to("payment/1")}, []store.JobID{a, b}},
			"state":          {store.JobFilter{Queue: &q, States: []store.State{store.Processing}}, []store.JobID{b}},
			"states":         {store.JobFilter{Queue: &q, States: []store.State{store.Processing, store.Dead}}, []store.JobID{b, failed.JobID}},
			"error_code":     {store.JobFilter{Queue: &q, ErrorCode: to("declined")}, []store.JobID{failed.JobID}},
			"created_from":   {store.JobFilter{Queue: &q, CreatedFrom: &day}, []store.JobID{a, b, failed.JobID}},
			"created_before": {store.JobFilter{Queue: &q, CreatedBefore: &day}, []store.JobID{old}},
			"both":           {store.JobFilter{Queue: &q, Subject: to("payment/1"), States: []store.State{store.Pending}}, []store.JobID{a}},
			"none":           {store.JobFilter{Queue: &q, Subject: to("payment/3")}, nil},
		} {
			if got := e.listJobs(c.f, store.Page{Size: 100}); !slices.Equal(got, c.want) {
				e.Errorf("%s: listed %v, want %v", name, got, c.want)
			}
		}
	}},
	{name: "R4_a_full_page_is_capped_in_bytes", run: func(e *env) {
		q := e.queue()
		for range 4 {
			e.enqueue(q, func(j *store.NewJob) { j.Payload.Data = make([]byte, 400<<10) })
		}
		seen, p := 0, store.Page{Size: 100, Bytes: 1 << 20}
		for range 10 {
			out, err := e.s.ListJobs(e.ctx, store.JobFilter{Queue: &q}, true, p)
			if err != nil || len(out.Jobs) > 2 {
				e.Fatalf("ListJobs: %d jobs of 400 KiB under a cap of 1 MiB, %v", len(out.Jobs), err)
			}
			for _, j := range out.Jobs {
				if j.Payload == nil || len(j.Payload.Data) != 400<<10 {
					e.Fatalf("the full view lacks the payload")
				}
			}
			seen += len(out.Jobs)
			if p.After = out.Next; out.Next == 0 {
				break
			}
		}
		if seen != 4 {
			e.Fatalf("%d jobs in all, want 4", seen)
		}
	}},
	{name: "R4_a_job_larger_than_the_cap_is_listed_alone", run: func(e *env) {
		q := e.queue()
		for range 2 {
			e.enqueue(q, func(j *store.NewJob) { j.Payload.Data = make([]byte, 400<<10) })
		}
		if got := e.listFull(q, store.Page{Size: 100, Bytes: 1000}); got != 2 {
			e.Fatalf("%d jobs in all, want 2", got)
		}
	}},
	{name: "R4_leases_by_number", run: func(e *env) {
		id := e.enqueue(e.queue())
		e.returnLoop(id, 5, e.releases)
		e.acquire(id)
		for _, size := range []int{1, 4, 6, 100} {
			var got []int64
			p := store.Page{Size: size}
			for range 10 {
				out, err := e.s.ListLeases(e.ctx, id, p)
				if err != nil || len(out.Leases) > size {
					e.Fatalf("ListLeases: %d leases, %v", len(out.Leases), err)
				}
				for _, r := range out.Leases {
					got = append(got, r.LeaseNo)
				}
				if p.After = out.Next; out.Next == 0 {
					break
				}
			}
			if !slices.Equal(got, []int64{1, 2, 3, 4, 5, 6}) {
				e.Fatalf("in pages of %d: listed %v", size, got)
			}
		}
		_, err := e.s.ListLeases(e.ctx, 1<<60, store.Page{Size: 1})
		wantErr[*store.JobNotFoundError](e, err)
	}},
	{name: "R4_leases_are_capped_in_bytes", run: func(e *env) {
		id := e.enqueue(e.queue())
		for range 3 {
			l := e.acquire(id)
			for i := range 20 {
				e.beat(store.Heartbeat{Lease: l.Ref(), Stage: to(fmt.Sprintf("%0100d", i))})
			}
			e.release(store.Release{Lease: l.Ref()})
		}
		var got []int64
		p := store.Page{Size: 100, Bytes: 3000}
		for range 5 {
			out, err := e.s.ListLeases(e.ctx, id, p)
			if err != nil || len(out.Leases) != 1 || len(out.Leases[0].Stages) != 20 {
				e.Fatalf("ListLeases: %d leases of 2 KB under a cap of 3,000 bytes, %v", len(out.Leases), err)
			}
			got = append(got, out.Leases[0].LeaseNo)
			if p.After = out.Next; out.Next == 0 {
				break
			}
		}
		if !slices.Equal(got, []int64{1, 2, 3}) {
			e.Fatalf("listed %v", got)
		}
	}},
	{name: "R4_the_last_leases_oldest_first", run: func(e *env) {
		id := e.enqueue(e.queue())
		e.returnLoop(id, 4, e.releases)
		for n, want := range map[int][]int64{1: {4}, 3: {2, 3, 4}, 100: {1, 2, 3, 4}, 0: nil} {
			out, err := e.s.LastLeases(e.ctx, id, n, 1<<20)
			var got []int64
			for _, r := range out {
				got = append(got, r.LeaseNo)
			}
			if err != nil || !slices.Equal(got, want) {
				e.Fatalf("the last %d leases are %v, %v; want %v", n, got, err, want)
			}
		}
	}},
	{name: "R4_unknown_job", run: func(e *env) {
		_, err := e.s.GetJob(e.ctx, 1<<60, false)
		if got := errOf[*store.JobNotFoundError](e, err); got.JobID != 1<<60 {
			e.Fatalf("the error names job %d", got.JobID)
		}
	}},
}

// listFull pages through a queue in the full view and counts its jobs.
func (e *env) listFull(queue string, p store.Page) (n int) {
	e.Helper()
	for range 50 {
		out, err := e.s.ListJobs(e.ctx, store.JobFilter{Queue: &queue}, true, p)
		if err != nil || len(out.Jobs) > 1 {
			e.Fatalf("ListJobs: %d jobs, %v", len(out.Jobs), err)
		}
		n += len(out.Jobs)
		if p.After = out.Next; out.Next == 0 {
			break
		}
	}
	return n
}

var maintenanceTests = []contractTest{
	{name: "R12_token_key_is_one_per_database", run: func(e *env) {
		a, err := e.s.TokenKey(e.ctx)
		if err != nil || len(a) < 32 {
			e.Fatalf("TokenKey: %d bytes, %v", len(a), err)
		}
		b, err := e.h.Replica(e.T).TokenKey(e.ctx)
		if err != nil || !slices.Equal(a, b) {
			e.Fatalf("another replica has another key, %v", err)
		}
	}},
	{name: "R41_ready_queues", run: func(e *env) {
		ready, later, empty, paused := e.queue(), e.queue(), e.queue(), e.queue()
		e.enqueue(ready)
		e.enqueue(later, func(j *store.NewJob) { j.Delay = to(3 * time.Hour) })
		e.enqueue(later, func(j *store.NewJob) { j.Delay, j.Priority = to(time.Hour), to(int32(9)) })
		e.lease(empty)
		e.enqueue(paused)
		e.pause(paused)
		out, err := e.s.ReadyQueues(e.ctx, []string{ready, later, empty, paused})
		if err != nil {
			e.Fatalf("ReadyQueues: %v", err)
		}
		got := map[string]store.QueueReadiness{}
		for _, r := range out {
			got[r.Queue] = r
		}
		switch {
		case len(got) != 4, !got[ready].Ready || got[ready].Paused, got[later].Ready || got[later].Next == nil,
			got[empty].Ready || got[empty].Next != nil, !got[paused].Paused:
			e.Fatalf("ReadyQueues answers %+v", out)
		}
		e.wantRemaining(*got[later].Next, time.Hour)
	}},
	{name: "R41_hints_reach_other_replicas", own: true, run: func(e *env) {
		listener := e.h.Replica(e.T)
		ready, hints, done := make(chan struct{}), make(chan []string, 16), make(chan error, 1)
		ctx, stop := context.WithCancel(e.ctx)
		defer stop()
		go func() {
			done <- listener.Listen(ctx, func() { close(ready) }, func(queues []string) { hints <- queues })
		}()
		e.await("Listen to be ready", ready)
		if err := e.s.Hint(e.ctx, []string{"a", "b"}); err != nil {
			e.Fatalf("Hint: %v", err)
		}
		missing := map[string]bool{"a": true, "b": true}
		for len(missing) > 0 {
			select {
			case queues := <-hints:
				for _, q := range queues {
					delete(missing, q)
				}
			case <-time.After(10 * time.Second):
				e.Fatalf("no hint of %v came", missing)
			}
		}
		stop()
		if err := <-done; err == nil {
			e.Fatalf("Listen ended without a cause")
		}
	}},
	{name: "R44_partitions_and_retention_leave_live_jobs_alone", own: true, run: func(e *env) {
		q := e.queue()
		ready, ref := e.enqueue(q), e.lease(q)
		e.age(ready, 400*24*time.Hour)
		if err := e.s.EnsurePartitions(e.ctx); err != nil {
			e.Fatalf("EnsurePartitions: %v", err)
		}
		if err := e.s.ApplyRetention(e.ctx, to(24*time.Hour), to(24*time.Hour)); err != nil {
			e.Fatalf("ApplyRetention: %v", err)
		}
		if got := e.job(ready).Payload; got == nil || string(got.Data) != "payload" {
			e.Fatalf("the payload of a live job is gone")
		}
		e.complete(store.Complete{Lease: ref})
		if h, err := e.s.Health(e.ctx); err != nil || h.SchemaVersion < 1 || h.PartitionsAhead < 2 {
			e.Fatalf("Health: %+v, %v", h, err)
		}
	}},
}

// await waits for a signal.
func (e *env) await(what string, c <-chan struct{}) {
	e.Helper()
	select {
	case <-c:
	case <-time.After(10 * time.Second):
		e.Fatalf("waited in vain for %s", what)
	}
}
