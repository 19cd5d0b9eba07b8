package postgres_test

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/postgres"
	"github.com/leasehold/leasehold/store/storetest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Run(m)) }

func migrate(ctx context.Context, url string) error {
	return postgres.Migrate(ctx, url, slog.New(slog.DiscardHandler))
}

// harness is the suite's way behind the back of a Store.
type harness struct {
	url   string
	store *postgres.Store
	sql   *pgxpool.Pool
}

var _ storetest.Harness = (*harness)(nil)

func newHarness(t testing.TB) *harness {
	t.Helper()
	url := pgtest.Database(t, migrate)
	return newHarnessOver(t, url, openStore(t, url))
}

func newHarnessOver(t testing.TB, url string, s *postgres.Store) *harness {
	t.Helper()
	h := &harness{url: url, store: s}
	sql, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sql.Close)
	h.sql = sql
	return h
}

func openStore(t testing.TB, url string) *postgres.Store {
	t.Helper()
	s, err := postgres.Open(t.Context(), postgres.Config{URL: url, PoolSize: 12})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func (h *harness) Store() store.Store               { return h.store }
func (h *harness) Replica(t testing.TB) store.Store { return openStore(t, h.url) }
func (h *harness) exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	if _, err := h.sql.Exec(context.Background(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// Age moves every time that is stored of a job into the past.
func (h *harness) Age(t testing.TB, id store.JobID, d time.Duration) {
	t.Helper()
	for _, sql := range []string{
		`UPDATE leasehold.jobs SET run_at = run_at - $2::interval, created_at = created_at - $2, lease_until = lease_until - $2,
		    leased_at = leased_at - $2, last_until = last_until - $2, beat_at = beat_at - $2, changed_at = changed_at - $2,
		    ended_at = ended_at - $2, cancel_requested_at = cancel_requested_at - $2 WHERE id = $1`,
		`UPDATE leasehold.finished_jobs SET run_at = run_at - $2::interval, created_at = created_at - $2, finished_at = finished_at - $2,
		    leased_at = leased_at - $2, last_until = last_until - $2, beat_at = beat_at - $2, changed_at = changed_at - $2,
		    ended_at = ended_at - $2, cancel_requested_at = cancel_requested_at - $2 WHERE id = $1`,
		`UPDATE leasehold.attempts SET leased_at = leased_at - $2::interval, last_until = last_until - $2, beat_at = beat_at - $2,
		    ended_at = ended_at - $2 WHERE job_id = $1`,
		`UPDATE leasehold.stages SET at = at - $2::interval WHERE job_id = $1`,
		`UPDATE leasehold.lease_errors SET at = at - $2::interval WHERE job_id = $1`,
		`UPDATE leasehold.late_calls SET first_at = first_at - $2::interval, last_at = last_at - $2 WHERE job_id = $1`,
		`UPDATE leasehold.operator_acts SET at = at - $2::interval WHERE job_id = $1`,
		`UPDATE leasehold.acquire_requests SET created_at = created_at - $2::interval WHERE $1 = ANY (job_ids)`,
	} {
		h.exec(t, sql, int64(id), d)
	}
}

// SetWritable writes the stamp of R35.
func (h *harness) SetWritable(t testing.TB, since, stamp time.Duration) {
	t.Helper()
	h.exec(t, `UPDATE leasehold.service SET writable_since = clock_timestamp() - $1::interval, stamped_at = clock_timestamp() - $2::interval`, since, stamp)
}

func (h *harness) SetLeaseNo(t testing.TB, id store.JobID, no int64) {
	t.Helper()
	h.exec(t, `UPDATE leasehold.jobs SET lease_no = $2 WHERE id = $1`, int64(id), no)
}

func (h *harness) DropPayload(t testing.TB, id store.JobID) {
	t.Helper()
	h.exec(t, `DELETE FROM leasehold.job_data WHERE job_id = $1`, int64(id))
}

func TestContract(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) storetest.Harness { return newHarness(t) })
}

// TestRandomSequences compares calls at random with the pure model, step by step.
func TestRandomSequences(t *testing.T) {
	t.Parallel()
	storetest.RunRandom(t, func(t *testing.T) storetest.Harness { return newHarness(t) })
}
