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
	items, _, err := s.act(ctx, cancelAct, []store.JobID{id}, false, by)
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
	items, unchanged, err := s.act(ctx, kind, slices.Compact(ids), act.DryRun, act.Actor)
	if act.Selection.Filter != nil {
		// A filter takes up what there is to do: repeated after a broken call, it tells what
		// is left.
		items = slices.DeleteFunc(items, func(item store.BulkItem) bool { return unchanged[item.JobID] })
	}
	return store.BulkResult{Items: items, Next: next}, err
}

// act does it to each job once, by statements that are conditional on the state they find. It
// tells as well which jobs were as they should be before.
func (s *Store) act(ctx context.Context, kind bulkAct, ids []store.JobID, dryRun bool, by store.Actor) ([]store.BulkItem, map[store.JobID]bool, error) {
	r := actRun{Store: s, bulkAct: kind, items: make([]store.BulkItem, len(ids)), dryRun: dryRun, by: by, unchanged: map[store.JobID]bool{}}
	for i, id := range ids {
		r.items[i].JobID = id
	}
	err := s.inWaves(ctx, indexes(len(ids)), func(i int) any { return i }, r.wave, func(i int, err error) {
		r.items[i].Err = cmp.Or[error](err, &store.BusyError{JobID: ids[i], What: "the job"})
	})
	return r.items, r.unchanged, err
}

// actRun is one call of act.
type actRun struct {
	*Store
	bulkAct
	items     []store.BulkItem
	dryRun    bool
	by        store.Actor
	unchanged map[store.JobID]bool
}

// wave acts on some of the items and returns those that were only locked. Once a statement
// has acted, an error of a later one is that of the items that are left: an error of the call
// would say that nothing was done, of jobs that run again already.
func (r *actRun) wave(ctx context.Context, wave []int) ([]int, error) {
	at := make(map[int64]int, len(wave))
	for _, i := range wave {
		at[int64(r.items[i].JobID)] = i
	}
	locked, err := r.actOn(ctx, at)
	if err == nil || len(at) == len(wave) {
		return locked, err
	}
	for _, i := range at {
		r.items[i].Err = err
	}
	return nil, nil
}

// actOn takes out of at what it acted on.
func (r *actRun) actOn(ctx context.Context, at map[int64]int) ([]int, error) {
	for _, sql := range r.statements {
		if len(at) == 0 {
			return nil, nil
		}
		rows, err := query(ctx, r.Store, unit{
			lane: r.work, sql: sql, args: []any{keys(at), r.dryRun, r.by.Name, r.by.Note}, idempotent: r.dryRun || r.repeatable,
		}, pgx.RowToStructByName[actRow])
		if err != nil {
			return nil, err
		}
		for _, row := range rows {
			r.items[at[row.ID]].State = store.State(row.State)
			delete(at, row.ID)
		}
	}
	return r.explainActs(ctx, at)
}

// explainActs says why jobs were not acted on, and returns those that were only locked.
func (r *actRun) explainActs(ctx context.Context, at map[int64]int) ([]int, error) {
	if len(at) == 0 {
		return nil, nil
	}
	rows, err := query(ctx, r.Store, unit{lane: r.work, sql: sqlJobStates, args: []any{keys(at)}, idempotent: true},
		pgx.RowToStructByName[standing])
	if err != nil {
		return nil, err
	}
	var locked []int
	for _, st := range rows {
		item := &r.items[at[st.ID]]
		switch {
		case st.State == nil:
			item.Err = &store.JobNotFoundError{JobID: item.JobID}
		case r.bulkAct.unchanged(st):
			item.State = st.state()
			r.unchanged[item.JobID] = true
		default:
			if item.Err = r.refuses(item.JobID, st); item.Err == nil {
				locked = append(locked, at[st.ID])
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
