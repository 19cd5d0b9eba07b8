package postgres_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/leasehold/leasehold/store"
)

// sqlInjectFaults makes writes to jobs fail as public.fault says, `times` times in all: the
// sequence counts the tries, because a rollback does not take it back.
const sqlInjectFaults = `
CREATE TABLE public.fault (state text, times int, constraint_name text, job_id bigint);
INSERT INTO public.fault VALUES ('00000', 0, '', NULL);
CREATE SEQUENCE public.tries MINVALUE 0;
CREATE FUNCTION public.fail() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE f public.fault; n bigint; row_id bigint;
BEGIN
    IF TG_OP = 'DELETE' THEN row_id := OLD.id; ELSE row_id := NEW.id; END IF;
    SELECT * INTO f FROM public.fault;
    IF f.job_id IS NULL OR f.job_id = row_id THEN
        n := nextval('public.tries');
        IF n <= f.times THEN
            RAISE EXCEPTION USING ERRCODE = f.state, MESSAGE = 'injected', CONSTRAINT = f.constraint_name;
        END IF;
    END IF;
    IF TG_OP = 'DELETE' THEN RETURN OLD; ELSE RETURN NEW; END IF;
END $$;
CREATE TRIGGER fail BEFORE INSERT OR UPDATE OR DELETE ON leasehold.jobs FOR EACH ROW EXECUTE FUNCTION public.fail()`

const always = 1 << 30

// inject arms the trigger.
func (h *harness) inject(t *testing.T, state string, times int, constraint string) {
	t.Helper()
	h.Exec(t, `SELECT setval('public.tries', 0)`)
	h.Exec(t, `UPDATE public.fault SET state = $1, times = $2, constraint_name = $3, job_id = NULL`, state, times, constraint)
}

func (h *harness) tries(t *testing.T) int {
	t.Helper()
	return one[int](t, h, `SELECT last_value::int FROM public.tries`)
}

// Calls that meet locks which their statements cannot skip, and so look again where they
// find one.
const (
	chained = "Complete with follow-up" // several statements in a transaction
	keyed   = "Enqueue with a key"      // waits for whoever inserts the same key
)

// writes are calls whose statement writes one row of jobs, one for each way to the database.
func (h *harness) writes(t *testing.T) map[string]func(context.Context) error {
	t.Helper()
	refs := h.leases(t, 3)
	free, key := h.enqueue(t, store.NewJob{})[0], "invoice-7"
	return map[string]func(context.Context) error{
		"Enqueue": func(ctx context.Context) error {
			out, err := h.store.Enqueue(ctx, []store.NewJob{{Queue: "q"}})
			return firstError(err, func() error { return out[0].Err })
		},
		keyed: func(ctx context.Context) error {
			out, err := h.store.Enqueue(ctx, []store.NewJob{{Queue: "q", IdempotencyKey: &key}})
			return firstError(err, func() error { return out[0].Err })
		},
		"Acquire": func(ctx context.Context) error {
			out, err := h.store.Acquire(ctx, []store.Acquire{{JobID: free, Owner: "worker-2", MaxJobs: 1}})
			return firstError(err, func() error { return out[0].Err })
		},
		"Heartbeat": func(ctx context.Context) error {
			out, err := h.store.Heartbeat(ctx, beatsOf(refs[0]))
			return firstError(err, func() error { return out[0].Err })
		},
		"Complete": func(ctx context.Context) error {
			out, err := h.store.Complete(ctx, completesOf(refs[1]))
			return firstError(err, func() error { return out[0].Err })
		},
		chained: func(ctx context.Context) error {
			out, err := h.store.Complete(ctx, []store.Complete{{Lease: refs[2], ThenEnqueue: []store.NewJob{{Queue: "q"}}}})
			return firstError(err, func() error { return out[0].Err })
		},
	}
}

func firstError(err error, item func() error) error {
	if err != nil {
		return err
	}
	return item()
}

// plain tells errors that are none of the contract's: a fault of our own, for the log.
func plain(err error) bool {
	return err != nil && !is[*store.BusyError](err) && !is[*store.UnavailableError](err) && !is[*store.OutcomeUnknownError](err)
}

// An error that the server itself reports is a clean rollback: no outcome is unknown.
func TestR34ServerErrorsAreToldApartByTheirCode(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.Exec(t, sqlInjectFaults)
	for _, c := range []struct {
		state      string
		constraint string
		retried    bool
		want       func(error) bool
	}{
		{"40001", "", true, is[*store.BusyError]},
		{"40P01", "", true, is[*store.BusyError]},
		{"55P03", "", false, is[*store.BusyError]},
		{"57014", "", false, is[*store.BusyError]},
		{"25006", "", false, is[*store.UnavailableError]},
		{"53300", "", true, is[*store.UnavailableError]},
		{"58030", "", true, is[*store.UnavailableError]},
		{"23514", "", true, is[*store.UnavailableError]}, // as where a partition is missing
		{"23514", "jobs_leased", false, plain},
		{"23505", "jobs_pkey", false, plain},
		{"22003", "", false, plain},
		{"22P02", "", false, plain},
		{"42P01", "", false, plain},
		{"XX000", "", false, plain},
	} {
		h.inject(t, "00000", 0, "")
		for name, write := range h.writes(t) {
			looksAgain := (name == chained || name == keyed) && (c.state == "55P03" || c.state == "57014")
			// What is repeated takes its time until it gives up: one call for each of the
			// two ways to run statements is enough.
			if !c.retried || name == "Enqueue" || name == chained {
				h.inject(t, c.state, always, c.constraint)
				err := write(store.Impatient(t.Context()))
				if tries := h.tries(t); !c.want(err) || (tries > 1) != c.retried && !looksAgain {
					t.Errorf("%s, %s %s for good: %T %v after %d tries", name, c.state, c.constraint, err, err, tries)
				}
				if pgErr, ok := errors.AsType[*pgconn.PgError](err); plain(err) && (!ok || pgErr.Code != c.state) {
					t.Errorf("%s, %s %s: the log would say %v", name, c.state, c.constraint, err)
				}
			}
			h.inject(t, c.state, 2, c.constraint)
			if err := write(t.Context()); (err == nil) != (c.retried || looksAgain) {
				t.Errorf("%s, %s %s twice: %v after %d tries", name, c.state, c.constraint, err, h.tries(t))
			}
		}
		h.inject(t, "00000", 0, "")
		h.wantTraces(t, c.state+" "+c.constraint, c.retried, c.state == "55P03" || c.state == "57014")
	}
}

// sqlTraces counts follow-up jobs, finished jobs, keys and jobs.
const sqlTraces = `
SELECT concat_ws(' ', (SELECT count(*) FROM leasehold.jobs WHERE parent_id IS NOT NULL), (SELECT count(*) FROM leasehold.finished_jobs),
    (SELECT count(*) FROM leasehold.idempotency_keys), (SELECT count(*) FROM leasehold.jobs))`

// wantTraces checks that what succeeded left its effect once, and what failed none; and
// removes all of it.
func (h *harness) wantTraces(t *testing.T, state string, retried, looksAgain bool) {
	t.Helper()
	want := "0 0 0 4" // three leased and one free
	switch {
	case retried:
		want = "1 2 1 5" // all took effect: two enqueued, two completed with one follow-up
	case looksAgain:
		want = "1 1 1 5" // one enqueued with its key, one completed with its follow-up
	}
	if got := one[string](t, h, sqlTraces); got != want {
		t.Errorf("%s: follow-up jobs, finished jobs, keys and jobs are %s, want %s", state, got, want)
	}
	for _, table := range []string{"jobs", "finished_jobs", "idempotency_keys"} {
		h.Exec(t, `DELETE FROM leasehold.`+table)
	}
}

// A sweep of hundreds, one of which the database refuses to end.
func TestR38OneBadRowNeverStopsTheSweepOfTheOthers(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.neverBlameless(t)
	h.Exec(t, sqlInjectFaults)
	for size, leased := range map[int]int{store.MaxBatch: 501, 100: 501, 1: 21} {
		h.inject(t, "00000", 0, "")
		h.Exec(t, `DELETE FROM leasehold.jobs`)
		refs := h.leases(t, leased)
		bad := refs[leased/2].JobID
		h.Exec(t, `UPDATE leasehold.jobs SET leased_at = leased_at - interval '1 hour', lease_until = lease_until - interval '1 hour'`)
		h.inject(t, "XX000", always, "")
		h.Exec(t, `UPDATE public.fault SET job_id = $1`, int64(bad))
		ended, after, refused := 0, store.JobID(0), false
		for pages := 0; pages == 0 || after != 0; pages++ {
			swept, err := h.store.SweepPage(t.Context(), after, size, nil)
			ended += swept.Ended
			refused = refused || err != nil
			if after = swept.Next; pages > leased {
				t.Fatalf("pages of %d: the sweep does not end", size)
			}
		}
		if ended != leased-1 || !refused {
			t.Errorf("pages of %d: ended %d of %d leases; the bad row was reported: %v", size, ended, leased, refused)
		}
		if left := h.rows(t, `SELECT id::text FROM leasehold.jobs WHERE state = 2`); len(left) != 1 || left[0] != number(bad) {
			t.Errorf("pages of %d: still leased are %q", size, left)
		}
	}
}
