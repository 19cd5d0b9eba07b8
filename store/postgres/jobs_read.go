package postgres

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/store"
)

const (
	// scanBound is how many rows of one index a statement of a list looks at.
	scanBound = 20_000
	// listPatience bounds a list that finds little: it answers a short page and where to
	// go on, instead of holding one of the few connections for reads.
	listPatience = time.Second
)

// jobRow is one job with what stands in other tables.
type jobRow struct {
	ID                                    int64
	Queue                                 string
	State                                 int16
	Subject                               *string
	Priority                              int32
	RunAt, CreatedAt                      time.Time
	AttemptsUsed, Expirations             int32
	LeaseNo                               int64
	LeaseOwner                            *string
	LeaseUntil                            *time.Time
	Stage                                 *string
	Progress                              *float64
	CancelRequestedAt, FinishedAt         *time.Time
	EndKind                               int16
	StateReason                           string
	ParentID                              *int64
	IdempotencyKey                        *string
	ErrorCode, ErrorMessage, ErrorDetails *string
	Payload                               []byte
	IsJSON                                *bool // nil: no payload
	ContentType                           *string
	Headers                               map[string]string
	Result                                []byte
	ResultIsJSON                          *bool // nil: no result
	ResultContentType                     *string
	Checkpoint                            []byte
	Running                               int64 // bytes up to this row
	Fits, Marker                          bool
	policyRow
}

func (r *jobRow) job() store.Job {
	job := store.Job{
		ID: store.JobID(r.ID), Queue: r.Queue, State: store.State(r.State), Subject: r.Subject, Priority: r.Priority,
		RunAt: r.RunAt, CreatedAt: r.CreatedAt, IdempotencyKey: r.IdempotencyKey, Policy: r.policy(),
		AttemptsUsed: r.AttemptsUsed, Expirations: r.Expirations, LeaseNo: r.LeaseNo, LeaseOwner: r.LeaseOwner,
		LeaseUntil: r.LeaseUntil, Stage: r.Stage, Progress: r.Progress, CancelRequestedAt: r.CancelRequestedAt,
		FinishedAt: r.FinishedAt, StateReason: r.StateReason, LastError: jobError(r.ErrorCode, r.ErrorMessage, r.ErrorDetails),
		CompletedLate: store.State(r.State) == store.Completed && store.End(r.EndKind) == store.EndCompletedLate,
		Payload:       content(r.Payload, r.IsJSON, r.ContentType), Headers: r.Headers,
		Result: content(r.Result, r.ResultIsJSON, r.ResultContentType), Checkpoint: r.Checkpoint,
	}
	if r.ParentID != nil {
		job.ParentJobID = ptr(store.JobID(*r.ParentID))
	}
	return job
}

// jobError is what a row of lease_errors says, nil where there is none.
func jobError(code, message, details *string) *store.JobError {
	if code == nil {
		return nil
	}
	return &store.JobError{Code: *code, Message: *message, Details: *details}
}

// content is nil where there is no row.
func content(data []byte, isJSON *bool, contentType *string) *store.Payload {
	if isJSON == nil {
		return nil
	}
	return &store.Payload{Data: data, JSON: *isJSON, ContentType: *contentType}
}

// GetJob reads one job, see store.JobStore.
func (s *Store) GetJob(ctx context.Context, id store.JobID, full bool) (*store.Job, error) {
	rows, err := s.readJobs(ctx, sqlGetJob, full, math.MaxInt64, int64(id))
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, &store.JobNotFoundError{JobID: id}
	}
	return ptr(rows[0].job()), nil
}

// GetJobByKey reads the job that owns an idempotency key, see store.JobStore.
func (s *Store) GetJobByKey(ctx context.Context, queue, key string, full bool) (*store.Job, error) {
	rows, err := s.readJobs(ctx, sqlGetJobByKey, full, math.MaxInt64, queue, key)
	if err != nil {
		return nil, err
	}
	if len(rows) > 0 {
		return ptr(rows[0].job()), nil
	}
	if _, err := s.queueID(ctx, &queue); err != nil {
		return nil, err
	}
	return nil, &store.JobNotFoundError{Queue: queue, Key: key}
}

func (s *Store) readJobs(ctx context.Context, sql string, full bool, bytes int64, args ...any) ([]jobRow, error) {
	return query(ctx, s, unit{lane: s.reads, sql: sql, args: append([]any{full, bytes}, args...), idempotent: true},
		pgx.RowToStructByName[jobRow])
}

// queueID finds a live queue by name; nil is any queue and has none.
func (s *Store) queueID(ctx context.Context, name *string) (*int32, error) {
	if name == nil {
		return nil, nil
	}
	ids, err := query(ctx, s, unit{lane: s.reads, sql: sqlQueueID, args: []any{*name}, idempotent: true}, pgx.RowTo[int32])
	if err != nil {
		return nil, err
	}
	if len(ids) == 0 {
		return nil, &store.QueueNotFoundError{Queue: *name}
	}
	return &ids[0], nil
}

// ListJobs lists jobs by id, see store.JobStore. A call reads a bounded number of rows: it
// repeats a bounded statement until the page is full, the list ends, or its time is over.
func (s *Store) ListJobs(ctx context.Context, f store.JobFilter, full bool, p store.Page) (store.JobPage, error) {
	queue, err := s.queueID(ctx, f.Queue)
	if err != nil {
		return store.JobPage{}, err
	}
	states := make([]int16, len(f.States))
	for i, state := range f.States {
		states[i] = int16(state)
	}
	sql := sqlListSubject
	if f.Subject == nil {
		sql = listByID(f)
	}
	list := jobList{page: store.JobPage{Next: p.After}, size: p.Size, bytes: int64(p.Bytes)}
	for started := time.Now(); ; {
		rows, err := s.readJobs(ctx, sql, full, list.bytesLeft(), list.page.Next, list.sizeLeft()+1, scanBound,
			queue, states, f.Subject, f.CreatedFrom, f.CreatedBefore, f.ErrorCode)
		if err != nil {
			return store.JobPage{}, err
		}
		if sql == sqlListSubject && slices.ContainsFunc(rows, func(r jobRow) bool { return r.Marker }) {
			sql = listByID(f)
			continue
		}
		if list.add(rows) || time.Since(started) >= listPatience {
			return list.page, nil
		}
	}
}

// listByID chooses the statement that reads what the filter's states need and no more.
func listByID(f store.JobFilter) string {
	only := func(states ...store.State) bool {
		return len(f.States) > 0 && !slices.ContainsFunc(f.States, func(s store.State) bool { return !slices.Contains(states, s) })
	}
	switch {
	case only(store.Stuck):
		return sqlListHeld
	case only(store.Processing, store.Stuck):
		return sqlListLeased
	case only(store.Pending, store.Processing, store.Stuck):
		return sqlListLive
	case f.Queue != nil && only(store.Dead, store.Cancelled):
		return sqlListNotCompleted
	case only(store.Completed, store.Dead, store.Cancelled):
		return sqlListFinished
	case f.Queue != nil && len(f.States) > 0 && !slices.Contains(f.States, store.Completed):
		return sqlListLiveNotCompleted
	}
	return sqlListAll
}

// jobList fills a page from several statements. page.Next is where the next one starts.
type jobList struct {
	page        store.JobPage
	size        int
	bytes, used int64
}

func (l *jobList) sizeLeft() int { return l.size - len(l.page.Jobs) }

func (l *jobList) bytesLeft() int64 {
	if l.bytes == 0 {
		return math.MaxInt64
	}
	return max(0, l.bytes-l.used)
}

// add takes over what one statement found, and tells whether the page is done.
func (l *jobList) add(rows []jobRow) bool {
	left, used := l.bytesLeft(), l.used
	for i := range rows {
		r := &rows[i]
		if r.Fits {
			if n := len(l.page.Jobs); n == l.size || n > 0 && r.Running > left {
				return true
			}
			l.page.Jobs = append(l.page.Jobs, r.job())
			l.used = used + r.Running
		}
		if l.page.Next = r.ID; r.Marker {
			return false
		}
	}
	l.page.Next = 0
	return true
}
