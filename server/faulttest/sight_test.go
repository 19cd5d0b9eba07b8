package faulttest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// What these tests see of the service and its database, and how they let time pass in it.

// look reads a single value from the database.
func look[T any](t *testing.T, f *fleet, sql string, args ...any) T {
	t.Helper()
	rows, err := f.db.SQL.Query(context.Background(), sql, args...)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	value, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}

// lookAll reads a column of texts.
func lookAll(t *testing.T, f *fleet, sql string, args ...any) []string {
	t.Helper()
	rows, err := f.db.SQL.Query(context.Background(), sql, args...)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	values, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return values
}

// ask reads a page of a replica's HTTP port; the status is 0 where nobody answers.
func ask(m *member, path string) (code int, body string) {
	ctx, cancel := context.WithTimeout(context.Background(), callTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+m.HTTP()+path, http.NoBody)
	if err != nil {
		return 0, err.Error()
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(text)
}

// isReady tells whether a replica says that it should get calls.
func isReady(m *member) bool {
	code, _ := ask(m, "/readyz")
	return code == http.StatusOK
}

// saysWhyNot tells whether a replica is unready for a reason with that text.
func saysWhyNot(m *member, text string) bool {
	code, body := ask(m, "/readyz")
	return code == http.StatusServiceUnavailable && strings.Contains(body, text)
}

// gauges are all series of a replica by name and labels, as /metrics writes them.
func gauges(t *testing.T, m *member) map[string]float64 {
	t.Helper()
	code, body := ask(m, "/metrics")
	if code != http.StatusOK {
		t.Fatalf("/metrics of %s: %d %s", m.HTTP(), code, body)
	}
	all := map[string]float64{}
	for lines := bufio.NewScanner(strings.NewReader(body)); lines.Scan(); {
		name, value, ok := strings.Cut(lines.Text(), " ")
		if at := strings.LastIndex(lines.Text(), "} "); at >= 0 {
			name, value, ok = lines.Text()[:at+1], lines.Text()[at+2:], true
		}
		if n, err := strconv.ParseFloat(value, 64); ok && err == nil && !strings.HasPrefix(name, "#") {
			all[name] = n
		}
	}
	return all
}

// opened makes a queue and returns its name.
func opened(t *testing.T, f *fleet, q *pb.Queue) string {
	t.Helper()
	accepted(t, f.members[0].queues.CreateQueue, &pb.CreateQueueRequest{Queue: q})
	return q.GetName()
}

// stored enqueues n jobs that differ in nothing and returns their ids.
func stored(t *testing.T, m *member, n int, job *pb.EnqueueRequest) (ids []string) {
	t.Helper()
	for n > 0 {
		part := min(n, 1000)
		req := &pb.BatchEnqueueRequest{}
		for range part {
			req.Items = append(req.Items, job)
		}
		for _, r := range accepted(t, m.jobs.BatchEnqueue, req).GetResults() {
			if r.GetError() != nil {
				t.Fatalf("BatchEnqueue: %v", r.GetError())
			}
			ids = append(ids, r.GetOk().GetJobId())
		}
		n -= part
	}
	return ids
}

// taken takes exactly n jobs of a queue.
func taken(t *testing.T, m *member, queue string, n int, duration time.Duration) (leases []*pb.Lease) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d leases of queue %s", n, queue), func() bool {
		leases = append(leases, accepted(t, m.leases.AcquireLease, &pb.AcquireLeaseRequest{
			Queues: []string{queue}, LeaseOwner: "w", MaxJobs: to(int32(n - len(leases))), LeaseDuration: durationpb.New(duration),
		}).GetLeases()...)
		return len(leases) == n
	})
	return leases
}

// stateOf is how a job stands, in the words of the views.
func stateOf(t *testing.T, f *fleet, id string) string {
	t.Helper()
	return look[string](t, f, `SELECT state FROM leasehold.all_jobs WHERE id = $1::text::bigint`, id)
}

// sqlOverdue lets the time of all leases have run out long ago.
const sqlOverdue = `UPDATE leasehold.jobs SET lease_until = lease_until - interval '1 day' WHERE state = 2`

// mayExpire makes the service one that has long been able to take heartbeats, so that leases
// of any length are ended by their time.
func mayExpire(t *testing.T, f *fleet) { t.Helper(); f.db.SetWritable(t, 24*time.Hour, 0) }

// mayNotExpire begins the grace anew: until mayExpire no lease that is longer than a few
// seconds is ended by its time.
func mayNotExpire(t *testing.T, f *fleet) { t.Helper(); f.db.SetWritable(t, 0, 0) }

// sqlUnsound tells what must not be, whatever has happened. $1: no worker lives, and each
// lease has had the time to be swept.
const sqlUnsound = `
WITH leases AS (
    SELECT l.job_id, count(*) AS n, min(l.lease_no) AS first, max(l.lease_no) AS last, count(*) FILTER (WHERE l.ended_by IS NULL) AS live,
           bool_or(l.began_early) AS overlap, max(l.lease_no) FILTER (WHERE l.ended_by IS NULL) AS live_no
    FROM (
        SELECT a.job_id, a.lease_no, a.ended_by,
               a.leased_at < lag(a.ended_at) OVER (PARTITION BY a.job_id ORDER BY a.lease_no) AS began_early
        FROM leasehold.all_leases a) l
    GROUP BY l.job_id
), both_of AS (
    SELECT j.id, j.state, j.lease_no, j.attempts_used, j.max_attempts, coalesce(l.n, 0) AS n, l.first, l.last,
           coalesce(l.live, 0) AS live, l.live_no, coalesce(l.overlap, false) AS overlap
    FROM leasehold.all_jobs j LEFT JOIN leases l ON l.job_id = j.id
)
SELECT format('job %s has %s leases on record, %s to %s, and lease_no %s', id, n, first, last, lease_no) FROM both_of
WHERE n <> lease_no OR n > 0 AND (first <> 1 OR last <> lease_no)
UNION ALL SELECT format('job %s is %s with %s live leases, the last %s of %s', id, state, live, live_no, lease_no) FROM both_of
WHERE live <> CASE state WHEN 'PROCESSING' THEN 1 ELSE 0 END OR live_no <> lease_no
UNION ALL SELECT format('a lease of job %s began before the one before it had ended', id) FROM both_of WHERE overlap
UNION ALL SELECT format('job %s used %s of %s attempts', id, attempts_used, max_attempts) FROM both_of WHERE attempts_used > max_attempts
UNION ALL SELECT format('job %s is live and finished', j.id) FROM leasehold.jobs j JOIN leasehold.finished_jobs f ON f.id = j.id
UNION ALL SELECT format('job %s is leased though all is settled', id) FROM both_of WHERE $1 AND state = 'PROCESSING'`

func wantSound(t *testing.T, f *fleet, settled bool) {
	t.Helper()
	for _, text := range lookAll(t, f, sqlUnsound, settled) {
		t.Error(text)
	}
}

// isTransient tells an error that asks its caller to try again.
func isTransient(err error) bool {
	code := status.Code(err)
	return code == codes.Unavailable || code == codes.ResourceExhausted
}
