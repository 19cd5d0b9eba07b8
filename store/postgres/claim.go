package postgres

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/leasehold/leasehold/store"
)

// leaseRow is one lease as granted or replayed.
type leaseRow struct {
	Caller         int
	Slot           int // orders the leases of all callers: by queue, priority, run_at, id
	Queue          string
	ID             int64
	Priority       int32
	RunAt          time.Time
	CreatedAt      time.Time
	AttemptsUsed   int32
	Expirations    int32
	LeaseNo        int64
	LeaseOwner     string
	LeaseUntil     time.Time
	Remaining      time.Duration
	Stage          *string
	Subject        *string
	ParentID       *int64
	Payload        []byte
	IsJSON         bool
	ContentType    string
	Headers        map[string]string
	Checkpoint     []byte
	IdempotencyKey *string
	// Firsts are quadruples of queue (from 1), priority, run_at in microseconds and id: where
	// the first PENDING job was, in one row of the answer.
	Firsts pgtype.FlatArray[int64]
	policyRow
}

// claim runs the statement for the items of a wave and moves the marks. Where nothing was
// found behind the marks it looks again from the start: nothing should be there, see marks.
func (s *Store) claim(ctx context.Context, items []store.Acquire, wave []int) (rows []leaseRow, held *requestLocks, err error) {
	u, held := claimUnit(s, items, wave)
	queues, args := items[wave[0]].Queues, u.args
	if len(queues) == 0 {
		rows, err = query(ctx, s, u, scanLease)
		return rows, held, err
	}
	for fromStart := false; ; fromStart = true {
		v := s.marks.view(queues, fromStart)
		u.args = append(slices.Clone(args), v.runAt, v.ids)
		rows, err = query(ctx, s, u, scanLease)
		if v.fromStart {
			s.marks.scannedFromStart(v)
		}
		s.moveMarks(v, rows)
		if err != nil || len(rows) > 0 || !s.marks.mayRescan(v) {
			return rows, held, err
		}
	}
}

// moveMarks notes what a claim saw.
func (s *Store) moveMarks(v *markView, rows []leaseRow) {
	for i := range rows {
		for f := rows[i].Firsts; len(f) >= 4; f = f[4:] {
			s.marks.found(v, int(f[0])-1, int(f[1]), position{runAt: time.UnixMicro(f[2]), id: f[3]})
		}
	}
}

// requestLocks are the positions whose request id this transaction held.
type requestLocks struct{ list string }

func (l *requestLocks) has(n int) bool {
	want := itoa(n)
	for _, held := range strings.Split(l.list, ",") {
		if held == want {
			return true
		}
	}
	return false
}

func claimUnit(s *Store, items []store.Acquire, wave []int) (unit, *requestLocks) {
	n := len(wave)
	owners, lengths := make([]string, n), make([]*time.Duration, n)
	maxJobs, maxBytes := make([]int32, n), make([]int32, n)
	requests, digests := make([]*string, n), make([][]byte, n)
	ids := make([]int64, n)
	requestIDs := 0
	for k, i := range wave {
		a := items[i]
		owners[k], lengths[k], requests[k], ids[k] = a.Owner, a.LeaseDuration, a.RequestID, int64(a.JobID)
		maxJobs[k] = int32(min(max(a.MaxJobs, 1), store.MaxBatch))
		if maxBytes[k] = int32(a.MaxBytes); a.MaxBytes <= 0 {
			maxBytes[k] = store.DefaultAnswerBytes
		}
		if a.RequestID != nil {
			requestIDs++
			digests[k] = requestDigest(a)
		}
	}
	held := &requestLocks{}
	u := unit{lane: s.work, idempotent: requestIDs == n}
	if requestIDs > 0 {
		u.before = append(u.before, prepared{sql: sqlLockRequests, args: []any{requests}, into: &held.list})
	}
	if items[wave[0]].JobID != 0 {
		// An expired lease is ended by section 6 first, in the same transaction: its row
		// lock is held until the claim, so that nobody comes between.
		u.before = append(u.before, prepared{sql: sqlEndExpiredByID, args: []any{ids}})
		u.sql = sqlAcquireByID
		u.args = []any{ids, owners, lengths, maxJobs, maxBytes, requests, digests}
		return u, held
	}
	u.sql = sqlAcquireByQueue // claim adds the marks
	u.args = []any{items[wave[0]].Queues, owners, lengths, maxJobs, maxBytes, requests, digests}
	return u, held
}

// scanLease scans the columns of a grant by position: by name it took half of the time that
// reading a claim's answer takes.
func scanLease(row pgx.CollectableRow) (r leaseRow, err error) {
	err = row.Scan(&r.Caller, &r.Slot, &r.Queue, &r.ID, &r.Priority, &r.RunAt, &r.CreatedAt, &r.AttemptsUsed, &r.Expirations,
		&r.LeaseNo, &r.LeaseOwner, &r.LeaseUntil, &r.Remaining, &r.Stage, &r.Subject, &r.ParentID,
		&r.MaxAttempts, &r.MaxExpirations, &r.BackoffInitial, &r.BackoffFactor, &r.BackoffCap, &r.BackoffJitter,
		&r.LeaseDuration, &r.MaxRuntime, &r.StallTimeout, &r.CancelGrace, &r.IdempotencyRetention,
		&r.Payload, &r.IsJSON, &r.ContentType, &r.Headers, &r.IdempotencyKey, &r.Checkpoint, &r.Firsts)
	return r, err
}

// inSlotOrder sorts rows that plans may, but seldom do, return in another order.
func inSlotOrder(rows []leaseRow) {
	for i := 1; i < len(rows); i++ {
		if rows[i].Slot < rows[i-1].Slot {
			slices.SortFunc(rows, func(a, b leaseRow) int { return cmp.Compare(a.Slot, b.Slot) })
			return
		}
	}
}

func (r *leaseRow) lease() store.Lease {
	owner, until := r.LeaseOwner, r.LeaseUntil
	job := store.Job{
		ID: store.JobID(r.ID), Queue: r.Queue, State: store.Processing, Subject: r.Subject, Priority: r.Priority,
		RunAt: r.RunAt, CreatedAt: r.CreatedAt, IdempotencyKey: r.IdempotencyKey, Policy: r.policy(),
		AttemptsUsed: r.AttemptsUsed, Expirations: r.Expirations, LeaseNo: r.LeaseNo, LeaseOwner: &owner,
		LeaseUntil: &until, Stage: r.Stage, Headers: r.Headers,
		Payload:    &store.Payload{Data: r.Payload, JSON: r.IsJSON, ContentType: r.ContentType},
		Checkpoint: r.Checkpoint,
	}
	if r.ParentID != nil {
		job.ParentJobID = ptr(store.JobID(*r.ParentID))
	}
	return store.Lease{
		Job: job, LeaseNo: r.LeaseNo, Attempt: r.AttemptsUsed + 1, Until: r.LeaseUntil,
		Remaining: r.Remaining, LastStage: r.Stage, Checkpoint: r.Checkpoint,
	}
}
