// Package backdoor reaches a test's database behind the back of the Stores over it: what the
// contract's suite needs done to it (storetest.Harness), whichever way its Stores are reached.
package backdoor

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasehold/leasehold/store"
)

// Database is a database of a test.
type Database struct {
	URL string
	SQL *pgxpool.Pool
}

// Open connects until the end of the test.
func Open(t testing.TB, url string) *Database {
	t.Helper()
	sql, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sql.Close)
	return &Database{URL: url, SQL: sql}
}

// Exec runs one statement that must succeed.
func (d *Database) Exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	if _, err := d.SQL.Exec(context.Background(), sql, args...); err != nil {
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
func (d *Database) Age(t testing.TB, id store.JobID, by time.Duration) {
	t.Helper()
	for _, sql := range sqlAge {
		d.Exec(t, sql, int64(id), by)
	}
}

// SetWritable is storetest.Harness.SetWritable.
func (d *Database) SetWritable(t testing.TB, since, stamp time.Duration) {
	t.Helper()
	d.Exec(t, `UPDATE leasehold.service SET writable_since = clock_timestamp() - $1::interval, stamped_at = clock_timestamp() - $2::interval`, since, stamp)
}

// SetLeaseNo is storetest.Harness.SetLeaseNo.
func (d *Database) SetLeaseNo(t testing.TB, id store.JobID, no int64) {
	t.Helper()
	d.Exec(t, `UPDATE leasehold.jobs SET lease_no = $2 WHERE id = $1`, int64(id), no)
}

// DropPayload is storetest.Harness.DropPayload.
func (d *Database) DropPayload(t testing.TB, id store.JobID) {
	t.Helper()
	d.Exec(t, `DELETE FROM leasehold.job_data WHERE job_id = $1`, int64(id))
}
