package postgres

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/store"
)

// sqlGate stands for unnest in sqlCancel, and waits between the snapshot of the statement and
// its first look at a job for as long as somebody holds the lock.
const sqlGate = `
CREATE FUNCTION leasehold.gate(ids bigint[]) RETURNS SETOF bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM pg_advisory_lock_shared(1);
    RETURN QUERY SELECT unnest(ids);
END $$`

// TestR32ACancelMeetsAClaimThatCommittedAfterItsSnapshot: the cancel locks the job as PROCESSING,
// while its snapshot still sees it PENDING. It is a request to the holder, and no error.
func TestR32ACancelMeetsAClaimThatCommittedAfterItsSnapshot(t *testing.T) {
	t.Parallel()
	s, stranger := markedStore(t)
	ctx := t.Context()
	jobs, err := s.Enqueue(ctx, []store.NewJob{{Queue: "q"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{sqlGate, `SELECT pg_advisory_lock(1)`} {
		if _, err := stranger.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	cancelled := make(chan error, 1)
	go func() {
		gated := strings.Replace(sqlCancel, "unnest($1::bigint[])", "leasehold.gate($1::bigint[])", 1)
		rows, err := s.Pool().Query(ctx, gated, []int64{int64(jobs[0].JobID)}, false, "on-call", "")
		if err == nil {
			_, err = pgx.CollectExactlyOneRow(rows, pgx.RowToMap)
		}
		cancelled <- err
	}()
	for waiting := false; !waiting; {
		if err := stranger.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted)`).Scan(&waiting); err != nil {
			t.Fatal(err)
		}
	}
	if got := claimed(t, s, 1); got != 1 {
		t.Fatalf("%d jobs were leased", got)
	}
	if _, err := stranger.Exec(ctx, `SELECT pg_advisory_unlock(1)`); err != nil {
		t.Fatal(err)
	}
	if err := <-cancelled; err != nil {
		t.Fatal(err)
	}
	var asked bool
	if err := stranger.QueryRow(ctx, `SELECT state = 2 AND cancel_requested_at IS NOT NULL FROM leasehold.jobs`).Scan(&asked); err != nil || !asked {
		t.Errorf("the lease was not asked to stop: %v, %v", asked, err)
	}
}
