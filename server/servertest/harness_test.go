package servertest

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/storetest"
)

// database is a database of a test, and the way behind the back of the service.
type database struct {
	url string
	sql *pgxpool.Pool
}

func newDatabase(t testing.TB) *database {
	t.Helper()
	return openDatabase(t, pgtest.Database(t, migrate))
}

func openDatabase(t testing.TB, url string) *database {
	t.Helper()
	sql, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sql.Close)
	return &database{url: url, sql: sql}
}

func (d *database) exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	if _, err := d.sql.Exec(context.Background(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// sqlAge moves every time that is stored of job $1 into the past by $2.
var sqlAge = []string{
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
}

// Age is storetest.Harness.Age.
func (d *database) Age(t testing.TB, id store.JobID, by time.Duration) {
	t.Helper()
	for _, sql := range sqlAge {
		d.exec(t, sql, int64(id), by)
	}
}

// SetWritable is storetest.Harness.SetWritable.
func (d *database) SetWritable(t testing.TB, since, stamp time.Duration) {
	t.Helper()
	d.exec(t, `UPDATE leasehold.service SET writable_since = clock_timestamp() - $1::interval, stamped_at = clock_timestamp() - $2::interval`, since, stamp)
}

// SetLeaseNo is storetest.Harness.SetLeaseNo.
func (d *database) SetLeaseNo(t testing.TB, id store.JobID, no int64) {
	t.Helper()
	d.exec(t, `UPDATE leasehold.jobs SET lease_no = $2 WHERE id = $1`, int64(id), no)
}

// DropPayload is storetest.Harness.DropPayload.
func (d *database) DropPayload(t testing.TB, id store.JobID) {
	t.Helper()
	d.exec(t, `DELETE FROM leasehold.job_data WHERE job_id = $1`, int64(id))
}

// remoteHarness is the suite's harness whose Stores are replicas of the service.
type remoteHarness struct {
	*database
	store store.Store
}

var _ storetest.Harness = (*remoteHarness)(nil)

func newRemoteHarness(t testing.TB) *remoteHarness {
	t.Helper()
	d := newDatabase(t)
	return &remoteHarness{database: d, store: newRemoteStore(t, d.url)}
}

// Store is storetest.Harness.Store.
func (h *remoteHarness) Store() store.Store { return h.store }

// Replica is storetest.Harness.Replica.
func (h *remoteHarness) Replica(t testing.TB) store.Store { return newRemoteStore(t, h.url) }
