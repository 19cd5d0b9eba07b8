package faulttest

import (
	"strings"
	"testing"
	"time"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

const (
	// sqlManyLeases gives a job 5,000 former leases, each with a long error.
	sqlManyLeases = `
WITH leases AS (
    INSERT INTO leasehold.attempts (job_id, lease_no, owner, leased_at, lease_length, ended_at, end_kind, counted, beats, stage)
    SELECT $1::text::bigint, g, 'w', now(), '1 minute', now(), 8, false, 0, repeat('s', 128) FROM generate_series(1, 4999) g RETURNING job_id, lease_no
), errors AS (
    INSERT INTO leasehold.lease_errors (job_id, lease_no, at, code, message, details)
    SELECT job_id, lease_no, now(), 'code', repeat('m', 1000), '' FROM leases
)
UPDATE leasehold.jobs SET lease_no = 5000, last_owner = 'w', leased_at = now(), lease_length = '1 minute', end_kind = 8, ended_at = now()
WHERE id = $1::text::bigint`

	// sqlHistoryReads counts what was read of the history, by index and in order.
	sqlHistoryReads = `
SELECT coalesce(sum(s.idx_tup_fetch + s.seq_tup_read), 0)::bigint FROM pg_stat_user_tables s
WHERE s.schemaname = 'leasehold' AND (s.relname LIKE 'attempts%' OR s.relname LIKE 'lease\_errors%' OR s.relname LIKE 'stages%')`

	sqlRowSize = `SELECT pg_column_size(j.*) FROM leasehold.jobs j WHERE j.id = $1::text::bigint`
)

// TestALongHistoryCostsTheHotPathNothing: a row that carries its history is rewritten with
// each heartbeat, and read with each acquire.
func TestALongHistoryCostsTheHotPathNothing(t *testing.T) {
	t.Parallel()
	f := newFleet(t, database(t), 1)
	m := f.members[0]
	q := opened(t, f, &pb.Queue{Name: "q"})
	ids := stored(t, m, 2, &pb.EnqueueRequest{Queue: q})
	old, young := ids[0], ids[1]
	f.db.Exec(t, sqlManyLeases, old)
	leases := taken(t, m, q, 2, time.Hour)
	tokens := map[string]string{}
	for _, l := range leases {
		tokens[l.GetJob().GetJobId()] = l.GetLeaseToken()
	}
	beat := func(id string) {
		accepted(t, m.leases.Heartbeat, &pb.HeartbeatRequest{LeaseToken: tokens[id], Checkpoint: []byte("half")})
	}
	beat(old)
	beat(young)
	if a, b := look[int](t, f, sqlRowSize, old), look[int](t, f, sqlRowSize, young); a > b+16 {
		t.Errorf("the row of a job with 5,000 leases has %d bytes, one with its first %d", a, b)
	}
	// The counts come when a session ends at the latest.
	restart := func() {
		m.Kill()
		if err := m.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	restart()
	before := look[int64](t, f, sqlHistoryReads)
	for range 50 {
		beat(old)
	}
	accepted(t, m.leases.Fail, &pb.FailRequest{
		LeaseToken: tokens[old], Error: &pb.JobError{Code: "c", Message: strings.Repeat("m", 3_900_000)},
	})
	accepted(t, m.jobs.GetJob, &pb.GetJobRequest{By: &pb.GetJobRequest_JobId{JobId: young}})
	restart()
	var read int64
	eventually(t, "the counts of the ended sessions", func() bool {
		read = look[int64](t, f, sqlHistoryReads) - before
		return look[int](t, f, `SELECT count(*)::int FROM leasehold.lease_errors WHERE lease_no = 5001`) == 1
	})
	if read > 50 {
		t.Errorf("50 heartbeats and a failure read %d rows of the history", read)
	}
	if n := look[int](t, f, `SELECT max(octet_length(message)) FROM leasehold.lease_errors WHERE lease_no = 5001`); n > 16<<10 {
		t.Errorf("%d bytes of an error are kept", n)
	}
	resp := accepted(t, m.jobs.ListLeases, &pb.ListLeasesRequest{JobId: old, PageSize: to(int32(1000))})
	if len(resp.GetLeases()) == 0 || resp.GetNextPageToken() == "" {
		t.Errorf("a page of the history has %d leases", len(resp.GetLeases()))
	}
}
