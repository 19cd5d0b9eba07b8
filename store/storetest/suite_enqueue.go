package storetest

import (
	"bytes"
	"strings"
	"time"

	"github.com/leasehold/leasehold/store"
)

var enqueueTests = []contractTest{
	{name: "R2_payload_is_kept_byte_for_byte", run: func(e *env) {
		every := make([]byte, 256)
		for i := range every {
			every[i] = byte(i)
		}
		for _, p := range []store.Payload{
			{Data: every, ContentType: "application/octet-stream"},
			{Data: []byte(`{"a": 1e400,  "a":"\u0000", "b":[ ]}`), JSON: true, ContentType: "application/json"},
			{},
			{Data: bytes.Repeat([]byte("x"), store.MaxPayloadBytes)},
		} {
			id := e.enqueue(e.queue(), func(j *store.NewJob) { j.Payload = p })
			got := e.job(id).Payload
			if got == nil || !bytes.Equal(got.Data, p.Data) || got.JSON != p.JSON || got.ContentType != p.ContentType {
				e.Fatalf("payload of %d bytes (json %t) came back different", len(p.Data), p.JSON)
			}
		}
	}},
	{name: "R3_one_items_error_never_voids_the_others", run: func(e *env) {
		q := e.queue()
		out, err := e.s.Enqueue(e.ctx, []store.NewJob{
			{Queue: q, Payload: text("first")}, {Queue: "no-such-queue"}, {Queue: q, Payload: text("third")},
		})
		if err != nil || len(out) != 3 {
			e.Fatalf("Enqueue: %d results, %v", len(out), err)
		}
		wantErr[*store.QueueNotFoundError](e, out[1].Err)
		for _, i := range []int{0, 2} {
			if out[i].Err != nil || !out[i].Created {
				e.Fatalf("item %d: %+v", i, out[i])
			}
		}
		if got := string(e.job(out[2].JobID).Payload.Data); got != "third" {
			e.Fatalf("the third result is about %q: results must stand in the order of the items", got)
		}
	}},
	{name: "R26_enqueue_into_an_unknown_queue_is_refused", run: func(e *env) {
		err := errOf[*store.QueueNotFoundError](e, e.tryEnqueue(store.NewJob{Queue: "no-such-queue"}).Err)
		if err.Queue != "no-such-queue" {
			e.Fatalf("the error names %q", err.Queue)
		}
	}},
	{name: "enqueued_job_is_stored_as_given", run: func(e *env) {
		q := e.queue()
		id := e.enqueue(q, func(j *store.NewJob) {
			j.Subject, j.Priority = to("payment/123"), to(int32(2))
			j.Headers = map[string]string{"traceparent": "00-1", "empty": ""}
			j.IdempotencyKey = to("key")
		})
		j := e.job(id)
		switch {
		case j.Queue != q, j.State != store.Pending, j.Priority != 2, j.AttemptsUsed != 0, j.LeaseNo != 0,
			j.Subject == nil || *j.Subject != "payment/123",
			j.IdempotencyKey == nil || *j.IdempotencyKey != "key",
			len(j.Headers) != 2 || j.Headers["traceparent"] != "00-1",
			j.LeaseOwner != nil, j.LeaseUntil != nil, j.FinishedAt != nil, j.ParentJobID != nil:
			e.Fatalf("the job came back as %+v", j)
		}
		e.wantIn(j.CreatedAt, 0, 0, "created_at")
		e.wantIn(j.RunAt, 0, 0, "run_at")
		if basic, err := e.s.GetJob(e.ctx, id, false); err != nil || basic.Payload != nil || basic.Headers != nil {
			e.Fatalf("the basic view carries content: %+v, %v", basic, err)
		}
		if p := e.job(e.enqueue(q)).Priority; p != store.DefaultPriority {
			e.Fatalf("the default priority is %d", p)
		}
	}},
	{name: "run_at_of_the_past_counts_as_now", run: func(e *env) {
		q := e.queue()
		late := e.enqueue(q, func(j *store.NewJob) { j.RunAt = to(time.Now().Add(-365 * 24 * time.Hour)) })
		e.wantIn(e.job(late).RunAt, 0, 0, "run_at")
		ahead := e.enqueue(q, func(j *store.NewJob) { j.RunAt = to(time.Now().Add(3 * time.Hour)) })
		e.wantIn(e.job(ahead).RunAt, 3*time.Hour, 3*time.Hour, "run_at")
		delayed := e.enqueue(q, func(j *store.NewJob) { j.Delay = to(2 * time.Hour) })
		e.wantIn(e.job(delayed).RunAt, 2*time.Hour, 2*time.Hour, "run_at by delay")
	}},
	{name: "run_at_beyond_five_years_is_invalid", run: func(e *env) {
		out := e.tryEnqueue(store.NewJob{Queue: e.queue(), RunAt: to(time.Now().Add(store.MaxAhead + time.Hour))})
		if err := errOf[*store.InvalidError](e, out.Err); !strings.Contains(err.Field, "run_at") {
			e.Fatalf("the error is about %q", err.Field)
		}
	}},
}

var keyTests = []contractTest{
	{name: "R33_same_key_and_payload_is_the_same_job", run: func(e *env) {
		q := e.queue()
		first := e.tryEnqueue(keyed(q, "k", "same"))
		before := e.job(first.JobID)
		again := keyed(q, "k", "same")
		again.Priority, again.Headers = to(int32(1)), map[string]string{"traceparent": "another"}
		second := e.tryEnqueue(again)
		if second.Err != nil || second.Created || second.JobID != first.JobID {
			e.Fatalf("the second enqueue answers %+v, the first %+v", second, first)
		}
		if after := e.job(first.JobID); after.Priority != before.Priority || len(after.Headers) != 0 {
			e.Fatalf("the row was touched: %+v", after)
		}
	}},
	{name: "R33_another_payload_or_content_type_is_refused", run: func(e *env) {
		q := e.queue()
		id := e.tryEnqueue(keyed(q, "k", "same")).JobID
		typed := keyed(q, "k", "same")
		typed.Payload.ContentType = "text/html"
		for _, other := range []store.NewJob{keyed(q, "k", "other"), typed} {
			err := errOf[*store.KeyReusedError](e, e.tryEnqueue(other).Err)
			if err.JobID != id || err.Queue != q {
				e.Fatalf("the error names job %d of %q, want %d of %q", err.JobID, err.Queue, id, q)
			}
		}
	}},
	{name: "R33_scope_is_queue_and_key", run: func(e *env) {
		a, b := e.tryEnqueue(keyed(e.queue(), "k", "a")), e.tryEnqueue(keyed(e.queue(), "k", "b"))
		if !a.Created || !b.Created || a.JobID == b.JobID {
			e.Fatalf("the same key in two queues: %+v, %+v", a, b)
		}
	}},
	{name: "R33_within_one_batch", run: func(e *env) {
		q := e.queue()
		out, err := e.s.Enqueue(e.ctx, []store.NewJob{
			keyed(q, "k", "same"), keyed(q, "k", "same"), keyed(q, "k", "other"), keyed(q, "l", "same"),
		})
		if err != nil {
			e.Fatalf("Enqueue: %v", err)
		}
		if !out[0].Created || out[1].Created || out[1].JobID != out[0].JobID || !out[3].Created {
			e.Fatalf("the batch answers %+v", out)
		}
		wantErr[*store.KeyReusedError](e, out[2].Err)
	}},
	{name: "R33_key_lives_while_the_job_lives", run: func(e *env) {
		q := e.queue()
		id := e.tryEnqueue(keyed(q, "k", "p")).JobID
		e.age(id, 400*24*time.Hour)
		e.forget()
		if out := e.tryEnqueue(keyed(q, "k", "p")); out.Created || out.JobID != id {
			e.Fatalf("after 400 days as PENDING the key answers %+v", out)
		}
	}},
	{name: "R33_key_lives_seven_days_after_the_end", run: func(e *env) {
		for name, end := range jobEnds {
			e.sub(name, func(e *env) { keyOutlives(e, end, 7*24*time.Hour, nil) })
		}
	}},
	{name: "R33_key_lifetime_is_settable", run: func(e *env) {
		month := jobPolicy(func(p *store.Policy) { p.IdempotencyRetention = to(30 * 24 * time.Hour) })
		keyOutlives(e, jobEnds["completed"], 30*24*time.Hour, month)
		q := e.queue()
		none := keyed(q, "k", "p")
		none.Policy.IdempotencyRetention = to(time.Duration(0))
		id := e.tryEnqueue(none).JobID
		jobEnds["completed"](e, id)
		if out := e.tryEnqueue(keyed(q, "k", "other")); out.Err != nil || !out.Created {
			e.Fatalf("a lifetime of 0 frees the key at the end, got %+v", out)
		}
	}},
	{name: "R33_job_by_key", run: func(e *env) {
		q := e.queue()
		id := e.tryEnqueue(keyed(q, "k", "p")).JobID
		if j, err := e.s.GetJobByKey(e.ctx, q, "k", true); err != nil || j.ID != id || string(j.Payload.Data) != "p" {
			e.Fatalf("GetJobByKey: %+v, %v", j, err)
		}
		_, err := e.s.GetJobByKey(e.ctx, q, "other", false)
		wantErr[*store.JobNotFoundError](e, err)
		_, err = e.s.GetJobByKey(e.ctx, "no-such-queue", "k", false)
		wantErr[*store.QueueNotFoundError](e, err)
		jobEnds["completed"](e, id)
		e.age(id, 8*24*time.Hour)
		_, err = e.s.GetJobByKey(e.ctx, q, "k", false)
		wantErr[*store.JobNotFoundError](e, err)
	}},
}

func keyed(queue, key, payload string) store.NewJob {
	return store.NewJob{Queue: queue, IdempotencyKey: &key, Payload: text(payload)}
}

func (e *env) forget() {
	e.Helper()
	if _, err := e.s.ForgetExpired(e.ctx); err != nil {
		e.Fatalf("ForgetExpired: %v", err)
	}
}

// jobEnds are the ways to a terminal state.
var jobEnds = map[string]func(e *env, id store.JobID){
	"completed": func(e *env, id store.JobID) { l := e.acquire(id); e.complete(store.Complete{Lease: l.Ref()}) },
	"dead": func(e *env, id store.JobID) {
		l := e.acquire(id)
		e.fail(store.Fail{Lease: l.Ref(), Permanent: true})
	},
	"cancelled": func(e *env, id store.JobID) { e.cancel(id) },
}

// keyOutlives checks that a key is its job's for a lifetime after the end, and then free,
// whether or not the rows of dead keys have been deleted yet.
func keyOutlives(e *env, end func(e *env, id store.JobID), lifetime time.Duration, change func(j *store.NewJob)) {
	e.Helper()
	q := e.queue()
	j := keyed(q, "k", "p")
	if change != nil {
		change(&j)
	}
	first := e.tryEnqueue(j)
	end(e, first.JobID)
	e.age(first.JobID, lifetime-time.Hour)
	e.forget()
	if out := e.tryEnqueue(keyed(q, "k", "p")); out.Err != nil || out.Created || out.JobID != first.JobID {
		e.Fatalf("an hour before its end the key answers %+v", out)
	}
	wantErr[*store.KeyReusedError](e, e.tryEnqueue(keyed(q, "k", "other")).Err)
	e.age(first.JobID, 2*time.Hour)
	if e.job(first.JobID).IdempotencyKey != nil {
		e.Fatalf("the job still shows a key that it no longer owns")
	}
	second := e.tryEnqueue(keyed(q, "k", "other"))
	if second.Err != nil || !second.Created || second.JobID == first.JobID {
		e.Fatalf("an hour after its end the key answers %+v", second)
	}
	e.forget()
	if out := e.tryEnqueue(keyed(q, "k", "other")); out.Created || out.JobID != second.JobID {
		e.Fatalf("the new owner lost the key: %+v", out)
	}
}
