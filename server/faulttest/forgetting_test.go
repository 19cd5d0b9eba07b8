package faulttest

import (
	"context"
	"testing"

	"github.com/leasehold/leasehold/store/postgres"
)

// sqlKeyed makes finished jobs $1 to $2 with a key each, finished that long ago.
const sqlKeyed = `
WITH jobs AS (
    INSERT INTO leasehold.finished_jobs (id, queue_id, state, priority, run_at, created_at, finished_at, bytes, attempts_used, expirations,
        lease_no, beats, stage_changes, end_kind, counted, sealed, idempotency_retention, state_reason)
    SELECT g, 1, 6, 5, now(), now(), now() - $3::interval, 0, 0, 0, 0, 0, 0, 0, false, false, $4::interval, ''
    FROM generate_series($1::int, $2::int) g RETURNING id
)
INSERT INTO leasehold.idempotency_keys (queue_id, key, job_id, digest) SELECT 1, 'key ' || id, id, '\x00' FROM jobs`

// TestKeysAreForgottenInTimeAmongManyThatLive: keys live for a week, so that those which are
// over are a small share of all, at the head and in between. A pass that stops where it finds
// none would take weeks to come round, and the table would grow for ever.
func TestKeysAreForgottenInTimeAmongManyThatLive(t *testing.T) {
	t.Parallel()
	f := newFleet(t, database(t), 0)
	s, err := postgres.Open(t.Context(), postgres.Config{URL: f.db.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	pass := func() { // as the service makes one each minute
		for range 100 {
			if n, err := s.ForgetExpired(context.Background()); err != nil {
				t.Fatal(err)
			} else if n == 0 {
				return
			}
		}
	}
	f.db.Exec(t, sqlKeyed, 1, 3000, "8 days", nil)            // over
	f.db.Exec(t, sqlKeyed, 3001, 6000, "0", nil)              // the next at the head
	f.db.Exec(t, sqlKeyed, 6001, 20_000, "1 day", "366 days") // live for long
	f.db.Exec(t, sqlKeyed, 20_001, 23_000, "1 day", "1 hour") // over, behind them
	f.db.Exec(t, sqlKeyed, 23_001, 30_000, "0", nil)
	left := func(first, last int) int {
		return look[int](t, f, `SELECT count(*)::int FROM leasehold.idempotency_keys WHERE job_id BETWEEN $1 AND $2`, first, last)
	}
	for n := range 3 {
		if pass(); left(1, 3000) > 0 {
			t.Errorf("pass %d left %d keys at the head", n, left(1, 3000))
		}
	}
	if n := left(20_001, 23_000); n > 0 {
		t.Errorf("three passes left %d keys behind those that live for long", n)
	}
	f.db.Exec(t, `UPDATE leasehold.finished_jobs SET finished_at = finished_at - interval '8 days' WHERE id BETWEEN 3001 AND 6000`)
	for range 2 {
		pass()
	}
	if n := left(3001, 6000); n > 0 {
		t.Errorf("two passes left %d of the keys at the head that were over by then", n)
	}
	if n := left(1, 30_000); n != 21_000 {
		t.Errorf("%d keys are left, and 21,000 live", n)
	}
}
