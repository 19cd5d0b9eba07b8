package postgres_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// columns is a row by column; the values are SQL.
type columns map[string]string

// with is a row that differs in some columns, given as name and value by turns.
func (c columns) with(pairs ...string) columns {
	row := maps.Clone(c)
	for i := 0; i < len(pairs); i += 2 {
		row[pairs[i]] = pairs[i+1]
	}
	return row
}

func (c columns) insert(table string) string {
	names := slices.Sorted(maps.Keys(c))
	values := make([]string, len(names))
	for i, name := range names {
		values[i] = c[name]
	}
	return "INSERT INTO leasehold." + table + " (" + strings.Join(names, ", ") + ") VALUES (" + strings.Join(values, ", ") + ")"
}

// The rows that the service writes, one of each kind.
var (
	pendingJob = columns{"id": "1", "queue_id": "1", "run_at": "now()"}
	leasedJob  = pendingJob.with("state", "2", "lease_no", "1", "lease_owner", "'w'", "lease_until", "now()",
		"last_owner", "'w'", "leased_at", "now()", "lease_length", "'1 minute'", "changed_at", "now()")
	waitingJob = pendingJob.with("lease_no", "1", "last_owner", "'w'", "leased_at", "now()", "lease_length", "'1 minute'",
		"last_until", "now()", "end_kind", "3", "ended_at", "now()", "counted", "true")
	heldJob     = waitingJob.with("state", "3", "end_kind", "5")
	finishedJob = columns{"id": "1", "queue_id": "1", "state": "4", "priority": "5", "run_at": "now()", "created_at": "now()",
		"finished_at": "now()", "bytes": "0", "attempts_used": "0", "expirations": "0", "lease_no": "1", "last_owner": "'w'",
		"leased_at": "now()", "lease_length": "'1 minute'", "beats": "0", "stage_changes": "0", "end_kind": "1",
		"ended_at": "now()", "counted": "false", "sealed": "false", "state_reason": "''"}
	formerLease = columns{"job_id": "1", "lease_no": "1", "owner": "'w'", "leased_at": "now()", "lease_length": "'1 minute'",
		"ended_at": "now()", "end_kind": "3", "counted": "true", "beats": "0"}
	queueRow   = columns{"name": "'q'"}
	keyRow     = columns{"queue_id": "1", "key": "'k'", "job_id": "1", "digest": `'\x00'`}
	requestRow = columns{"request_id": "'r'", "digest": `'\x00'`, "job_ids": "'{}'", "lease_nos": "'{}'", "created_at": "now()"}
)

func TestR24ColumnsThatFitAreStored(t *testing.T) {
	t.Parallel()
	s := newStranger(t, newHarness(t).URL)
	type row struct {
		table string
		row   columns
	}
	rows := []row{
		{"jobs", pendingJob},
		{"jobs", leasedJob},
		{"jobs", leasedJob.with("cancel_requested_at", "now()")},
		{"jobs", leasedJob.with("attempts_used", "1000", "max_attempts", "1000", "expirations", "999", "free_ends", "99")},
		{"jobs", heldJob},
		{"jobs", pendingJob.with("state", "3")}, // its payload is gone
		{"finished_jobs", finishedJob},
		{"finished_jobs", finishedJob.with("state", "6", "lease_no", "0", "end_kind", "0", "ended_at", "NULL", "last_owner", "NULL", "leased_at", "NULL", "lease_length", "NULL")},
		{"queues", queueRow},
		{"idempotency_keys", keyRow.with("key", "repeat('k', 256)")},
		{"acquire_requests", requestRow.with("request_id", "repeat('r', 256)")},
		{"job_data", columns{"job_id": "1", "payload": "decode(repeat('00', 1048576), 'hex')"}},
		{"job_results", columns{"job_id": "1", "result": "decode(repeat('00', 1048576), 'hex')"}},
		{"checkpoints", columns{"job_id": "1", "data": "decode(repeat('00', 65536), 'hex')"}},
	}
	for _, end := range []string{"3", "4", "5", "6", "7", "8", "9"} {
		rows = append(rows, row{"jobs", waitingJob.with("end_kind", end)}, row{"attempts", formerLease.with("end_kind", end)},
			row{"finished_jobs", finishedJob.with("end_kind", end, "state", "5")})
	}
	for _, r := range rows {
		s.exec(`BEGIN`)
		s.exec(r.row.insert(r.table))
		s.exec(`ROLLBACK`)
	}
}

// The row of each kind of job without what only another kind has, or with it.
var forbiddenJobs = map[string]columns{
	"an id of zero":                  pendingJob.with("id", "0"),
	"a negative id":                  pendingJob.with("id", "-1"),
	"no state":                       pendingJob.with("state", "0"),
	"a terminal state, COMPLETED":    waitingJob.with("state", "4"),
	"a terminal state, DEAD":         waitingJob.with("state", "5"),
	"a terminal state, CANCELLED":    waitingJob.with("state", "6"),
	"a priority below the first":     pendingJob.with("priority", "0"),
	"a priority behind the last":     pendingJob.with("priority", "10"),
	"never due":                      pendingJob.with("run_at", "'infinity'"),
	"due for ever":                   pendingJob.with("run_at", "'-infinity'"),
	"created at no time":             pendingJob.with("created_at", "'-infinity'"),
	"negative attempts":              pendingJob.with("attempts_used", "-1"),
	"attempts beyond the bound":      pendingJob.with("attempts_used", "1001"),
	"expirations beyond the bound":   pendingJob.with("expirations", "1001"),
	"given back beyond the bound":    pendingJob.with("free_ends", "101"),
	"a negative lease_no":            waitingJob.with("lease_no", "-1"),
	"no attempts allowed":            pendingJob.with("max_attempts", "0"),
	"a lease of less than a second":  pendingJob.with("lease_duration", "'999 milliseconds'"),
	"a lease beyond the bound":       pendingJob.with("lease_duration", "'12 hours 1 second'"),
	"a negative backoff":             pendingJob.with("backoff_initial", "'-1 second'"),
	"a backoff that shrinks":         pendingJob.with("backoff_factor", "0.5"),
	"a jitter that makes it earlier": pendingJob.with("backoff_jitter", "1.5"),
	"a jitter that is no number":     pendingJob.with("backoff_jitter", "'NaN'"),
	"a progress that is no number":   leasedJob.with("progress", "'NaN'"),
	"a progress beyond the end":      leasedJob.with("progress", "1.01"),
	"a stage beyond the bound":       leasedJob.with("stage", "repeat('s', 129)"),
	"an empty subject":               pendingJob.with("subject", "''"),
	"a subject beyond the bound":     pendingJob.with("subject", "repeat('s', 257)"),

	"PROCESSING without owner":          leasedJob.with("lease_owner", "NULL"),
	"PROCESSING with an empty owner":    leasedJob.with("lease_owner", "''"),
	"PROCESSING with an endless owner":  leasedJob.with("lease_owner", "repeat('w', 257)"),
	"PROCESSING without lease_until":    leasedJob.with("lease_until", "NULL"),
	"PROCESSING for ever":               leasedJob.with("lease_until", "'infinity'"),
	"PROCESSING until no time":          leasedJob.with("lease_until", "'-infinity'"),
	"PROCESSING without last owner":     leasedJob.with("last_owner", "NULL"),
	"PROCESSING since no time":          leasedJob.with("leased_at", "NULL"),
	"PROCESSING without length":         leasedJob.with("lease_length", "NULL"),
	"PROCESSING a lease that has ended": leasedJob.with("end_kind", "5", "ended_at", "now()"),
	"PROCESSING with an end's time":     leasedJob.with("ended_at", "now()"),
	"PROCESSING under lease_no zero":    pendingJob.with("state", "2", "lease_owner", "'w'", "lease_until", "now()"),

	// A sum with an interval would fail, and take a whole batch with it.
	"leased at the end of time":         leasedJob.with("leased_at", "'infinity'"),
	"a beat at the end of time":         leasedJob.with("beat_at", "'infinity'"),
	"a beat at the limit of the type":   leasedJob.with("beat_at", "'294276-12-31'"),
	"a change before the start of time": leasedJob.with("changed_at", "'-infinity'"),
	"a request at the end of time":      leasedJob.with("cancel_requested_at", "'infinity'"),
	"ended at the end of time":          waitingJob.with("ended_at", "'infinity'"),

	"PENDING with owner":                  waitingJob.with("lease_owner", "'w'"),
	"PENDING with lease_until":            waitingJob.with("lease_until", "now()"),
	"PENDING with owner and lease_until":  waitingJob.with("lease_owner", "'w'", "lease_until", "now()"),
	"PENDING behind a lease without end":  waitingJob.with("end_kind", "0", "ended_at", "NULL"),
	"PENDING behind an end without lease": pendingJob.with("end_kind", "5", "ended_at", "now()"),
	"PENDING with a cancel request":       waitingJob.with("cancel_requested_at", "now()"),
	"PENDING, lease_no without facts":     pendingJob.with("lease_no", "1", "end_kind", "5", "ended_at", "now()"),
	"PENDING, facts without lease_no":     waitingJob.with("lease_no", "0", "end_kind", "0", "ended_at", "NULL"),
	"an end_kind without ended_at":        waitingJob.with("ended_at", "NULL"),
	"an ended_at without end_kind":        waitingJob.with("end_kind", "0"),
	"a live job that was completed":       waitingJob.with("end_kind", "1"),
	"a live job that was completed late":  waitingJob.with("end_kind", "2"),
	"an end of no kind":                   waitingJob.with("end_kind", "10"),
	"STUCK with owner":                    heldJob.with("lease_owner", "'w'"),
	"STUCK with lease_until":              heldJob.with("lease_until", "now()"),
	"STUCK with a cancel request":         heldJob.with("cancel_requested_at", "now()"),
	"STUCK behind a lease without end":    heldJob.with("end_kind", "0", "ended_at", "NULL"),
}

// Rows of the other tables that nothing of the service could read or would ever end.
var forbiddenRows = map[string]map[string]columns{
	"finished_jobs": {
		"a live state":                 finishedJob.with("state", "1"),
		"a leased state":               finishedJob.with("state", "2"),
		"a held state":                 finishedJob.with("state", "3"),
		"no state":                     finishedJob.with("state", "NULL"),
		"a lease without end":          finishedJob.with("end_kind", "0", "ended_at", "NULL"),
		"an end without lease":         finishedJob.with("lease_no", "0"),
		"an end_kind without ended_at": finishedJob.with("ended_at", "NULL"),
		"an ended_at without end_kind": finishedJob.with("lease_no", "0", "end_kind", "0"),
		"an end of no kind":            finishedJob.with("end_kind", "10"),
		"not finished":                 finishedJob.with("finished_at", "NULL"),
	},
	"attempts": {
		"a lease that lives":            formerLease.with("end_kind", "0"),
		"a lease that was completed":    formerLease.with("end_kind", "1"),
		"a lease that completed late":   formerLease.with("end_kind", "2"),
		"a lease that ended at no time": formerLease.with("ended_at", "NULL"),
		"a lease of nobody":             formerLease.with("owner", "NULL"),
	},
	"queues": {
		"no name":               queueRow.with("name", "''"),
		"capitals":              queueRow.with("name", "'Q'"),
		"a name of 129 bytes":   queueRow.with("name", "repeat('q', 129)"),
		"a line break":          queueRow.with("name", "E'q\\n'"),
		"no such rule":          queueRow.with("on_expiry", "3"),
		"no attempts":           queueRow.with("max_attempts", "0"),
		"a negative retention":  queueRow.with("idempotency_retention", "'-1 second'"),
		"a grace beyond a day":  queueRow.with("cancel_grace", "'25 hours'"),
		"an endless runtime":    queueRow.with("max_runtime", "'31 days'"),
		"a stall of no seconds": queueRow.with("stall_timeout", "'0'"),
	},
	"idempotency_keys": {
		"an empty key":       keyRow.with("key", "''"),
		"a key of 257 bytes": keyRow.with("key", "repeat('k', 257)"),
	},
	"acquire_requests": {
		"an empty request_id":       requestRow.with("request_id", "''"),
		"a request_id of 257 bytes": requestRow.with("request_id", "repeat('r', 257)"),
	},
	"job_data": {
		"a payload beyond 1 MiB":  {"job_id": "1", "payload": "decode(repeat('00', 1048577), 'hex')"},
		"headers that are a list": {"job_id": "1", "payload": "''", "headers": "'[]'"},
	},
	"job_results": {"a result beyond 1 MiB": {"job_id": "1", "result": "decode(repeat('00', 1048577), 'hex')"}},
	"checkpoints": {"a checkpoint beyond 64 KiB": {"job_id": "1", "data": "decode(repeat('00', 65537), 'hex')"}},
	"service":     {"a second row": {"singleton": "false"}},
	"secrets":     {"a short key": {"singleton": "true", "token_key": `'\x00'`}},
}

func TestR24CombinationsThatNoQuerySelectsAreRefused(t *testing.T) {
	t.Parallel()
	s := newStranger(t, newHarness(t).URL)
	tables := maps.Clone(forbiddenRows)
	tables["jobs"] = forbiddenJobs
	for table, rows := range tables {
		for name, row := range rows {
			s.exec(`BEGIN`)
			_, err := s.conn.Exec(t.Context(), row.insert(table))
			s.exec(`ROLLBACK`)
			refused, ok := errors.AsType[*pgconn.PgError](err)
			switch {
			case err == nil:
				t.Errorf("%s: %s is stored", table, name)
			case !ok || refused.Code != "23514" && refused.Code != "23502":
				t.Errorf("%s: %s is refused, but not by a CHECK or NOT NULL: %v", table, name, err)
			}
		}
	}
}
