package postgres_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold/leasehold/store"
)

const day = 24 * time.Hour

// sqlPartitionsFrom lists the tables that still have the partition that begins at an id.
const sqlPartitionsFrom = `
SELECT p.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_class p ON p.oid = i.inhparent
WHERE p.relnamespace = 'leasehold'::regnamespace AND p.relkind = 'p' AND c.relname = p.relname || '_' || $1
UNION SELECT 'left: ' || c.relname FROM pg_class c
WHERE c.relnamespace = 'leasehold'::regnamespace AND c.relkind = 'r' AND c.relname LIKE '%\_' || $1 AND NOT c.relispartition
ORDER BY 1`

var (
	factTables    = []string{"attempts", "finished_jobs", "lease_errors", "stages"}
	contentTables = []string{"job_data", "job_results"}
	allTables     = slices.Sorted(slices.Values(slices.Concat(factTables, contentTables)))
)

// oldJobs makes jobs whose partition is behind the next job id, each with two leases, a
// stage, an error, a checkpoint and an act: one COMPLETED, one DEAD, finished `age` ago.
func (h *harness) oldJobs(t *testing.T, age time.Duration, key *string) (completed, dead store.JobID) {
	t.Helper()
	ids := h.enqueue(t, store.NewJob{IdempotencyKey: key, Payload: store.Payload{Data: []byte("1")}}, store.NewJob{})
	for i, id := range ids {
		first := h.lease(t, id)
		h.beat(t, first, "psp_call")
		if _, err := h.store.Release(t.Context(), []store.Release{{Lease: first}}); err != nil {
			t.Fatal(err)
		}
		last := h.lease(t, id)
		h.beat(t, last, "settled")
		if i == 0 {
			out, err := h.store.Complete(t.Context(), []store.Complete{{Lease: last, Result: store.Payload{Data: []byte("paid")}}})
			if err != nil || out[0].Err != nil {
				t.Fatalf("Complete: %+v, %v", out, err)
			}
		} else if _, err := h.store.Fail(t.Context(), []store.Fail{{Lease: last, Permanent: true, Error: store.JobError{Code: "declined"}}}); err != nil {
			t.Fatal(err)
		}
		h.Age(t, id, age)
	}
	h.moveSequence(t, 2*partitionWidth+10)
	if err := h.store.EnsurePartitions(t.Context()); err != nil {
		t.Fatal(err)
	}
	return ids[0], ids[1]
}

func (h *harness) retain(t *testing.T, facts, payloads time.Duration) {
	t.Helper()
	age := func(d time.Duration) *time.Duration {
		if d == 0 {
			return nil
		}
		return &d
	}
	if err := h.store.ApplyRetention(t.Context(), age(facts), age(payloads)); err != nil {
		t.Fatal(err)
	}
}

func (h *harness) wantPartitions(t *testing.T, when, from string, want []string) {
	t.Helper()
	if got := h.rows(t, sqlPartitionsFrom, from); !slices.Equal(got, want) {
		t.Errorf("%s the partition from %s is in %q, want %q", when, from, got, want)
	}
}

func TestR44RetentionDropsWhatIsOldEnough(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	key := "invoice-7"
	completed, dead := h.oldJobs(t, 8*day+time.Hour, &key)
	h.retain(t, 0, 0)
	h.retain(t, 9*day, 9*day)
	h.wantPartitions(t, "an hour less than old enough,", "0", allTables)
	h.retain(t, 8*day, 0)
	h.wantPartitions(t, "old enough,", "0", nil)
	h.wantPartitions(t, "empty and behind,", "1000000", nil)
	h.wantPartitions(t, "in use,", "2000000", allTables)
	if ahead := h.partitionsAhead(t); ahead < 8 {
		t.Errorf("%d partitions ahead", ahead)
	}
	for _, id := range []store.JobID{completed, dead} {
		if _, err := h.store.GetJob(t.Context(), id, true); !is[*store.JobNotFoundError](err) {
			t.Errorf("job %d: %v", id, err)
		}
	}
	if left := h.rows(t, `
SELECT 'a checkpoint' FROM leasehold.checkpoints UNION ALL SELECT 'a key' FROM leasehold.idempotency_keys
UNION ALL SELECT 'a late call' FROM leasehold.late_calls UNION ALL SELECT 'an act' FROM leasehold.operator_acts`); len(left) > 0 {
		t.Errorf("of dropped jobs there is left %q", left)
	}
	if again := h.enqueue(t, store.NewJob{IdempotencyKey: &key}); again[0] == completed {
		t.Error("the key belongs to a job that is gone")
	}
	h.complete(t, h.lease(t, h.enqueue(t, store.NewJob{})[0]))
}

func TestR44RetentionKeepsWhatIsNeeded(t *testing.T) {
	t.Parallel()
	key := "invoice-7"
	for _, c := range []struct {
		name string
		key  *string
		age  time.Duration
		need func(*testing.T, *harness)
		free func(*testing.T, *harness)
	}{
		{
			"a live job", nil, 30 * day,
			func(t *testing.T, h *harness) {
				h.moveSequence(t, 50)
				h.enqueue(t, store.NewJob{})
			},
			func(t *testing.T, h *harness) { h.Exec(t, `DELETE FROM leasehold.jobs`) },
		},
		{
			"a recent end", nil, 30 * day,
			func(t *testing.T, h *harness) {
				h.moveSequence(t, 50)
				h.complete(t, h.leases(t, 1)[0])
			},
			func(t *testing.T, h *harness) {
				h.Exec(t, `UPDATE leasehold.finished_jobs SET finished_at = finished_at - interval '2 days' WHERE id >= 50`)
			},
		},
		{
			"a living key", &key, 2 * day,
			func(*testing.T, *harness) {},
			func(t *testing.T, h *harness) {
				h.Exec(t, `UPDATE leasehold.finished_jobs SET finished_at = finished_at - interval '6 days'`)
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			h.oldJobs(t, c.age, c.key)
			c.need(t, h)
			h.moveSequence(t, 2*partitionWidth+10)
			h.retain(t, day, 0)
			h.wantPartitions(t, "with "+c.name, "0", allTables)
			h.wantPartitions(t, "behind the one that is kept,", "1000000", nil)
			c.free(t, h)
			h.retain(t, day, 0)
			h.wantPartitions(t, "without "+c.name, "0", nil)
		})
	}
}

func TestR44RetentionOfLessThanADayIsRefused(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.oldJobs(t, 30*day, nil)
	for _, d := range []time.Duration{0, -time.Hour, 23 * time.Hour} {
		if err := h.store.ApplyRetention(t.Context(), &d, nil); err == nil {
			t.Errorf("facts are kept for %v only", d)
		}
		if err := h.store.ApplyRetention(t.Context(), nil, &d); err == nil {
			t.Errorf("payloads are kept for %v only", d)
		}
	}
	h.wantPartitions(t, "after refusals", "0", allTables)
}

func TestR44FactsOutliveTheirPayloads(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	completed, dead := h.oldJobs(t, 2*day, nil)
	h.retain(t, 0, day)
	h.wantPartitions(t, "without payloads", "0", factTables)
	for id, state := range map[store.JobID]store.State{completed: store.Completed, dead: store.Dead} {
		job, err := h.store.GetJob(t.Context(), id, true)
		if err != nil || job.State != state || job.Payload != nil || job.Result != nil || job.LeaseNo != 2 {
			t.Errorf("GetJob: %+v, %v", job, err)
		}
		page, err := h.store.ListLeases(t.Context(), id, store.Page{Size: 10})
		if err != nil || len(page.Leases) != 2 || len(page.Leases[1].Stages) != 1 {
			t.Errorf("ListLeases: %+v, %v", page, err)
		}
	}
	out, err := h.store.RetryJobs(t.Context(), store.BulkAct{Selection: store.Selection{IDs: []store.JobID{dead}}})
	if err != nil {
		t.Fatal(err)
	}
	refused, ok := errors.AsType[*store.StateError](out.Items[0].Err)
	if !ok || refused.State != store.Dead || !strings.Contains(refused.Want, "payload") {
		t.Errorf("RetryJobs of a job without payload: %+v", out.Items[0])
	}
	if got := h.state(t, dead); got != store.Dead {
		t.Errorf("it is %v", got)
	}
}

// An operator settles an old job long after its payload was dropped: the partition of its
// result is gone, and no repetition brings it back.
func TestR44AnOldJobIsSettledWithoutItsPartitionOfResults(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	_, dead := h.oldJobs(t, 2*day, nil)
	h.retain(t, 0, day)
	job, err := h.store.ResolveJob(t.Context(), store.Resolution{JobID: dead, Result: &store.Payload{Data: []byte("paid by hand")}, Actor: store.Actor{Name: "ops"}})
	if is[*store.UnavailableError](err) {
		t.Errorf("the caller is told to try again, for ever: %v", err)
	}
	if err == nil && job.State != store.Completed {
		t.Errorf("it is %v", job.State)
	}
}

// TestR44RetentionLooksAgainBehindItsLocks: a RetryJobs of a DEAD job commits between the look
// for what is in use and the drop; its payload must still be there.
func TestR44RetentionLooksAgainBehindItsLocks(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	_, dead := h.oldJobs(t, 40*day, nil)
	tx, err := h.SQL.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }() // it has ended
	for _, sql := range []string{
		`SELECT octet_length(payload) FROM leasehold.job_data WHERE job_id = $1`,
		`DELETE FROM leasehold.finished_jobs WHERE id = $1`,
		`INSERT INTO leasehold.jobs (id, queue_id, run_at) SELECT $1, min(q.id), now() FROM leasehold.queues q`,
	} {
		if _, err := tx.Exec(t.Context(), sql, int64(dead)); err != nil {
			t.Fatal(err)
		}
	}
	retained := make(chan error, 1)
	month := 30 * day
	go func() { retained <- h.store.ApplyRetention(t.Context(), nil, &month) }()
	h.awaitSomebodyBlocked(t, int(tx.Conn().PgConn().PID()))
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-retained; err != nil {
		t.Fatal(err)
	}
	h.wantPartitions(t, "while a job in it lives", "0", allTables)
}
