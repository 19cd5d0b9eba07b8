package storetest

import (
	"strings"
	"time"
	"unicode/utf8"

	"github.com/leasehold/leasehold/store"
)

var failTests = []contractTest{
	{name: "R20_fail_answers_state_attempts_left_and_next_run", run: func(e *env) {
		ref := e.lease(e.queue(), jobPolicy(func(p *store.Policy) { p.MaxAttempts = to(int32(3)) }))
		out := e.fail(store.Fail{Lease: ref, Error: store.JobError{Code: "c", Message: "m", Details: "d"}, RetryAfter: to(2 * time.Hour)})
		if out.State != store.Pending || out.AttemptsLeft != 2 || out.NextRunAt == nil {
			e.Fatalf("Fail answers %+v", out)
		}
		e.wantIn(*out.NextRunAt, 2*time.Hour, 2*time.Hour, "next_run_at")
		e.wantRemaining(out.NextRunIn, 2*time.Hour)
		j := e.wantState(ref.JobID, store.Pending)
		if !j.RunAt.Equal(*out.NextRunAt) || j.AttemptsUsed != 1 || j.LeaseOwner != nil || j.LeaseUntil != nil {
			e.Fatalf("the job is %+v", j)
		}
		want := store.JobError{Code: "c", Message: "m", Details: "d"}
		if j.LastError == nil || *j.LastError != want {
			e.Fatalf("the job keeps error %+v", j.LastError)
		}
		if r := e.wantEnd(ref, store.EndFailed); !r.Counted || r.Error == nil || *r.Error != want {
			e.Fatalf("the lease is kept as %+v", r)
		}
	}},
	{name: "R20_permanent_is_dead", run: func(e *env) {
		ref := e.lease(e.queue())
		out := e.fail(store.Fail{Lease: ref, Permanent: true, RetryAfter: to(time.Hour)})
		if out.State != store.Dead || out.NextRunAt != nil {
			e.Fatalf("Fail answers %+v", out)
		}
		if j := e.wantState(ref.JobID, store.Dead); j.FinishedAt == nil || j.AttemptsUsed != 1 {
			e.Fatalf("the job is %+v", j)
		}
		e.wantEnd(ref, store.EndFailedPermanently)
	}},
	{name: "R20_the_last_attempt_is_dead", run: func(e *env) {
		id := e.enqueue(e.queue(), jobPolicy(func(p *store.Policy) { p.MaxAttempts = to(int32(2)) }))
		for left := int32(1); left >= 0; left-- {
			l := e.acquire(id)
			if out := e.fail(store.Fail{Lease: l.Ref(), RetryAfter: to(time.Duration(0))}); out.AttemptsLeft != left {
				e.Fatalf("%d attempts left, want %d", out.AttemptsLeft, left)
			}
		}
		e.wantState(id, store.Dead)
		e.wantEmpty(e.tryAcquire(store.Acquire{JobID: id}), store.JobFinished)
	}},
	{name: "R20_a_batch_answers_each_by_itself", run: func(e *env) {
		q := e.queue()
		a, b, done := e.lease(q), e.lease(q), e.lease(q)
		e.complete(store.Complete{Lease: done})
		out, err := e.s.Fail(e.ctx, []store.Fail{{Lease: a, Permanent: true}, {Lease: done}, {Lease: b, RetryAfter: to(time.Hour)}})
		if err != nil || len(out) != 3 || out[0].State != store.Dead || out[2].State != store.Pending {
			e.Fatalf("Fail: %+v, %v", out, err)
		}
		wantErr[*store.EndedError](e, out[1].Err)
		released, err := e.s.Release(e.ctx, []store.Release{{Lease: e.lease(q)}, {Lease: done}})
		if err != nil || len(released) != 2 || released[0].State != store.Pending {
			e.Fatalf("Release: %+v, %v", released, err)
		}
		wantErr[*store.EndedError](e, released[1].Err)
	}},
	{name: "R37_error_texts_are_cut_on_a_rune_boundary_and_marked", run: func(e *env) {
		ref := e.lease(e.queue())
		long := strings.Repeat("€", store.MaxErrorTextBytes)
		e.fail(store.Fail{Lease: ref, Error: store.JobError{Code: strings.Repeat("ü", 200), Message: long, Details: "x" + long}})
		got := e.record(ref).Error
		if got == nil {
			e.Fatalf("the error is gone")
		}
		for name, text := range map[string]struct {
			got, full string
			limit     int
		}{
			"code":    {got.Code, strings.Repeat("ü", 200), store.MaxErrorCodeBytes},
			"message": {got.Message, long, store.MaxErrorTextBytes},
			"details": {got.Details, "x" + long, store.MaxErrorTextBytes},
		} {
			kept := commonPrefix(text.got, text.full)
			if len(text.got) > text.limit || !utf8.ValidString(text.got) {
				e.Errorf("%s: %d bytes kept, valid %t; want at most %d", name, len(text.got), utf8.ValidString(text.got), text.limit)
			}
			if kept < text.limit-64 || kept == len(text.got) {
				e.Errorf("%s: %d bytes of the text kept and %d of a mark", name, kept, len(text.got)-kept)
			}
		}
	}},
	{name: "R37_error_texts_are_cleaned", run: func(e *env) {
		ref := e.lease(e.queue())
		e.fail(store.Fail{Lease: ref, Error: store.JobError{Code: "a\x00b", Message: "bad \xff\xfe utf8", Details: "nul \x00 and \xed\xa0\x80"}})
		got := e.record(ref).Error
		for _, text := range []string{got.Code, got.Message, got.Details} {
			if strings.Contains(text, "\x00") || !utf8.ValidString(text) {
				e.Fatalf("%q was stored", text)
			}
		}
		if !strings.HasPrefix(got.Code, "a") || !strings.HasSuffix(got.Code, "b") || !strings.Contains(got.Message, "utf8") {
			e.Fatalf("more than the bad bytes is gone: %+v", got)
		}
	}},
	{name: "R37_what_fits_is_kept_as_it_is", run: func(e *env) {
		ref := e.lease(e.queue())
		full := strings.Repeat("y", store.MaxErrorTextBytes)
		want := store.JobError{Code: strings.Repeat("c", store.MaxErrorCodeBytes), Message: full, Details: full}
		e.fail(store.Fail{Lease: ref, Error: want})
		if got := e.record(ref).Error; got == nil || *got != want {
			e.Fatalf("an error of exactly the bounds was changed")
		}
	}},
}

func commonPrefix(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}
