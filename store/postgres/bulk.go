package postgres

import (
	"bytes"
	"cmp"
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/store"
)

type actRow struct {
	ID    int64
	State int16
}

// bulkAct is RetryJobs or CancelJobs.
type bulkAct struct {
	statements []string // each acts on the jobs that it applies to
	// unchanged tells jobs that are answered as done, without an act.
	unchanged func(standing) bool
	// refuses says why the act does not apply to a job that exists; nil where it does.
	refuses func(store.JobID, standing) error
	// applies tells the jobs that an act by filter takes up.
	applies func(*store.Job) bool
	// repeatable: doing it twice leaves no more behind than doing it once.
	repeatable bool
}

// standing is where a job stands that an act passed over.
type standing struct {
	ID           int64
	State        *int16
	Whole        bool
	Due, Fresh   *bool // of a live job
	Queue        *string
	QueueDeleted bool
}

func (st standing) state() store.State { return store.State(*st.State) }

var (
	cancelAct = bulkAct{
		statements: []string{sqlCancel},
		unchanged:  func(st standing) bool { return st.state() == store.Cancelled },
		refuses: func(id store.JobID, st standing) error {
			if !st.state().Terminal() {
				return nil
			}
			return &store.StateError{JobID: id, State: st.state(), Want: "only PENDING, STUCK and PROCESSING jobs can be cancelled"}
		},
		applies:    func(j *store.Job) bool { return !j.State.Terminal() },
		repeatable: true,
	}
	retryAct = bulkAct{
		statements: []string{sqlRetryLive, sqlRetryDead},
		unchanged:  func(st standing) bool { return st.state() == store.Pending && *st.Due },
		refuses:    refusesRetry,
		applies: func(j *store.Job) bool {
			return j.State == store.Dead || j.State == store.Stuck || (j.State == store.Pending && j.LeaseNo > 0)
		},
	}
)

func refusesRetry(id store.JobID, st standing) error {
	state := st.state()
	switch {
	case state == store.Pending && *st.Fresh:
		return &store.StateError{JobID: id, State: state, Want: "it waits for its run_at and not for a backoff"}
	case state != store.Pending && state != store.Dead && state != store.Stuck:
		return &store.StateError{JobID: id, State: state, Want: "only DEAD and STUCK jobs, and PENDING ones that wait, can be retried"}
	case st.QueueDeleted:
		return &store.QueueNotFoundError{Queue: *st.Queue}
	case !st.Whole:
		return &store.StateError{JobID: id, State: state, Want: "its payload is gone, it cannot run again"}
	}
	return nil
}

// CancelJob cancels one job, see store.JobStore.
func (s *Store) CancelJob(ctx context.Context, id store.JobID, by store.Actor) (store.CancelResult, error) {
	items, err := s.act(ctx, cancelAct, []store.JobID{id}, false, by)
	if err != nil {
		return store.CancelResult{}, err
	}
	if items[0].Err != nil {
		return store.CancelResult{}, items[0].Err
	}
	return store.CancelResult{Requested: items[0].State == store.Processing, State: items[0].State}, nil
}

// CancelJobs cancels one batch.
func (s *Store) CancelJobs(ctx context.Context, act store.BulkAct) (store.BulkResult, error) {
	return s.bulk(ctx, cancelAct, act)
}

// RetryJobs retries one batch.
func (s *Store) RetryJobs(ctx context.Context, act store.BulkAct) (store.BulkResult, error) {
	return s.bulk(ctx, retryAct, act)
}

func (s *Store) bulk(ctx context.Context, kind bulkAct, act store.BulkAct) (store.BulkResult, error) {
	ids, next := act.Selection.IDs, int64(0)
	if act.Selection.Filter != nil {
		page, err := s.ListJobs(ctx, *act.Selection.Filter, false, act.Selection.Page)
		if err != nil {
			return store.BulkResult{}, err
		}
		next = page.Next
		for i := range page.Jobs {
			if kind.applies(&page.Jobs[i]) {
				ids = append(ids, page.Jobs[i].ID)
			}
		}
	}
	slices.Sort(ids)
	items, err := s.act(ctx, kind, slices.Compact(ids), act.DryRun, act.Actor)
	return store.BulkResult{Items: items, Next: next}, err
}

// act does it to each job once, by statements that are conditional on the state they find.
func (s *Store) act(ctx context.Context, kind bulkAct, ids []store.JobID, dryRun bool, by store.Actor) ([]store.BulkItem, error) {
	items := make([]store.BulkItem, len(ids))
	for i, id := range ids {
		items[i].JobID = id
	}
	err := s.inWaves(ctx, indexes(len(ids)), func(i int) any { return i },
		func(ctx context.Context, wave []int) ([]int, error) {
			return s.actWave(ctx, kind, items, wave, dryRun, by)
		},
		func(i int, err error) {
			items[i].Err = cmp.Or[error](err, &store.BusyError{JobID: ids[i], What: "the job"})
		})
	return items, err
}

func (s *Store) actWave(ctx context.Context, kind bulkAct, items []store.BulkItem, wave []int, dryRun bool, by store.Actor) ([]int, error) {
	at := make(map[int64]int, len(wave))
	for _, i := range wave {
		at[int64(items[i].JobID)] = i
	}
	for _, sql := range kind.statements {
		if len(at) == 0 {
			return nil, nil
		}
		rows, err := query(ctx, s, unit{lane: s.work, sql: sql, args: []any{keys(at), dryRun, by.Name, by.Note}, idempotent: dryRun || kind.repeatable},
			pgx.RowToStructByName[actRow])
		if err != nil {
			return nil, err
		}
		for _, r := range rows {
			items[at[r.ID]].State = store.State(r.State)
			delete(at, r.ID)
		}
	}
	return s.explainActs(ctx, kind, items, at)
}

// explainActs says why jobs were not acted on, and returns those that were only locked.
func (s *Store) explainActs(ctx context.Context, kind bulkAct, items []store.BulkItem, at map[int64]int) ([]int, error) {
	if len(at) == 0 {
		return nil, nil
	}
	rows, err := query(ctx, s, unit{lane: s.work, sql: sqlJobStates, args: []any{keys(at)}, idempotent: true},
		pgx.RowToStructByName[standing])
	if err != nil {
		return nil, err
	}
	var locked []int
	for _, r := range rows {
		item := &items[at[r.ID]]
		switch {
		case r.State == nil:
			item.Err = &store.JobNotFoundError{JobID: item.JobID}
		case kind.unchanged(r):
			item.State = r.state()
		default:
			if item.Err = kind.refuses(item.JobID, r); item.Err == nil {
				locked = append(locked, at[r.ID])
			}
		}
	}
	return locked, nil
}

// ResolveJob records what became of a STUCK or DEAD job, see store.QueueStore.
func (s *Store) ResolveJob(ctx context.Context, r store.Resolution) (*store.Job, error) {
	state, act := store.Dead, "resolve_dead"
	var result []byte
	payload := store.Payload{}
	if r.Result != nil {
		state, act, payload = store.Completed, "resolve_completed", *r.Result
		if !emptyPayload(payload) {
			result = notNil(payload.Data)
		}
	}
	err := inTx(ctx, s, s.work, true, func(ctx context.Context, tx pgx.Tx) error {
		done, err := collect(ctx, tx, sqlResolveStuck, []any{int64(r.JobID), int16(state)}, pgx.RowTo[int64])
		if err == nil && len(done) == 0 {
			done, err = collect(ctx, tx, sqlResolveDead, []any{int64(r.JobID), int16(state)}, pgx.RowTo[int64])
		}
		if err != nil {
			return err
		}
		if len(done) == 0 {
			return notTakenError{}
		}
		_, err = tx.Exec(ctx, sqlResolveRecord, int64(r.JobID), act, r.Actor.Name, r.Actor.Note, result, payload.JSON, payload.ContentType)
		return err
	})
	if err != nil && !isNotTaken(err) {
		return nil, err
	}
	job, readErr := s.GetJob(ctx, r.JobID, err != nil)
	if readErr != nil || err == nil {
		return job, readErr
	}
	switch {
	case job.State == state && state == store.Completed && job.StateReason != "" && samePayload(job.Result, payload):
		return job, nil // the same resolution again
	case job.State == store.Stuck || job.State == store.Dead:
		return nil, &store.BusyError{JobID: r.JobID, What: "the job"}
	}
	return nil, &store.StateError{JobID: r.JobID, State: job.State, Want: "only STUCK and DEAD jobs can be resolved"}
}

func samePayload(stored *store.Payload, p store.Payload) bool {
	if stored == nil {
		return emptyPayload(p)
	}
	return stored.JSON == p.JSON && stored.ContentType == p.ContentType && bytes.Equal(stored.Data, p.Data)
}

func keys(m map[int64]int) []int64 {
	out := make([]int64, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
