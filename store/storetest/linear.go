package storetest

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/storetest/model"
)

// Linear says how a history is to be judged by CheckLinearizable.
type Linear struct {
	// Queues are the queues of the history, as they stood all the time.
	Queues map[string]store.Queue
	// ClockSlack is how far the callers' clocks and the database's may lie apart.
	// Default: 2 s.
	ClockSlack time.Duration
	// Timeout bounds the search of one job. Default: 20 s.
	Timeout time.Duration
}

// CheckLinearizable asks of every job of the tables whether any order of its calls, each
// somewhere between its start and its end, explains all answers and the rows as they
// stand. Sweeps are in no history: they may have happened at any time that the rules
// allow. Calls whose outcome is unknown may have taken effect or not.
func CheckLinearizable(h History, t Tables, cfg Linear) error {
	cfg.ClockSlack = cmp.Or(cfg.ClockSlack, 2*time.Second)
	cfg.Timeout = cmp.Or(cfg.Timeout, 20*time.Second)
	byJob := map[store.JobID]History{}
	for _, c := range h {
		byJob[c.Job] = append(byJob[c.Job], c)
	}
	var errs []error
	for id, row := range t {
		s := &specification{cfg: cfg, row: row, queue: cfg.Queues[row.Job.Queue]}
		ops := s.operations(byJob[id])
		switch porcupine.CheckOperationsTimeout(s.model(), ops, cfg.Timeout) {
		case porcupine.Illegal:
			errs = append(errs, fmt.Errorf("no order of the calls explains job %d:\n%s", id, describe(ops)))
		case porcupine.Unknown:
			errs = append(errs, fmt.Errorf("job %d could not be judged within %s", id, cfg.Timeout))
		}
	}
	return errors.Join(errs...)
}

func describe(ops []porcupine.Operation) string {
	var b strings.Builder
	for _, op := range ops {
		fmt.Fprintf(&b, "  %v\n", op.Input)
	}
	return b.String()
}

// specification is the sequential specification of one job. Time is not exact in it: a
// call acted at some time between its start and its end, so the model is asked for both,
// and where both fit, what follows is a window.
type specification struct {
	cfg   Linear
	row   JobRow
	queue store.Queue
}

// finalRead is the last operation: the rows as they stand.
type finalRead struct{ row JobRow }

func (f finalRead) String() string {
	return fmt.Sprintf("the row: %s, lease_no %d, %d attempts used, leases %s",
		f.row.Job.State, f.row.Job.LeaseNo, f.row.Job.AttemptsUsed, ends(f.row.Leases))
}

func ends(leases []store.LeaseRecord) string {
	var b strings.Builder
	for _, l := range leases {
		fmt.Fprintf(&b, "[%d end %d]", l.LeaseNo, l.End)
	}
	return b.String()
}

// operations are the calls on the job, what the tables alone know of, and the final read.
func (s *specification) operations(calls History) (ops []porcupine.Operation) {
	last := s.row.Job.CreatedAt
	for _, c := range append(calls, s.silentCalls(calls)...) {
		if skipped(c) {
			continue
		}
		op := porcupine.Operation{ClientId: c.Client, Input: c, Call: c.Start.UnixNano(), Return: c.End.UnixNano()}
		if c.Unknown {
			op.Return = math.MaxInt64
		}
		if c.End.After(last) {
			last = c.End // the rows were read after every caller had given up
		}
		ops = append(ops, op)
	}
	at := last.UnixNano() + 1
	return append(ops, porcupine.Operation{Input: finalRead{s.row}, Call: at, Return: at + 1})
}

// skipped are calls that say nothing about the job's order: the Enqueue, which every
// history begins with by the row itself, and leases whose answer was lost, which the
// tables tell.
func skipped(c Call) bool {
	switch c.Request.(type) {
	case model.Enqueue:
		return true
	case model.Acquire:
		return c.Unknown || c.Outcome.Empty == store.QueuePaused
	}
	return false
}

// silentCalls are leases on record that no caller was told of: their answers were lost.
func (s *specification) silentCalls(calls History) (silent History) {
	told := map[int64]bool{}
	for _, c := range calls {
		if _, ok := c.Request.(model.Acquire); ok && !c.Unknown && c.Outcome.LeaseNo != 0 {
			told[c.Outcome.LeaseNo] = true
		}
	}
	for _, l := range s.row.Leases {
		if told[l.LeaseNo] {
			continue
		}
		silent = append(silent, Call{
			Start: l.LeasedAt.Add(-s.cfg.ClockSlack), End: l.LeasedAt.Add(s.cfg.ClockSlack), Job: l.JobID, Bare: true,
			Request: model.Acquire{Owner: l.Owner, ByID: true}, Outcome: model.Outcome{LeaseNo: l.LeaseNo, Until: l.Until},
		})
	}
	return silent
}

func (s *specification) model() porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{s.created()} },
		Step: func(state, input, _ any) []any {
			var out []any
			for _, next := range s.step(state.(model.State), input) {
				out = append(out, next)
			}
			return out
		},
		Equal: func(a, b any) bool { return fingerprint(a.(model.State)) == fingerprint(b.(model.State)) },
		Hash: func(a any) uint64 {
			f := fnv.New64a()
			_, _ = f.Write([]byte(fingerprint(a.(model.State)))) // it never fails
			return f.Sum64()
		},
	}
	return m.ToModel()
}

// created is the job as it was enqueued. The row knows the policy that it copied; when it
// was due, only that it was not before its creation.
func (s *specification) created() model.State {
	j := s.row.Job
	job := store.NewJob{Queue: j.Queue, Priority: &j.Priority, Subject: j.Subject, Policy: j.Policy}
	st, _ := model.Step(model.State{}, model.Request{Call: model.Enqueue{ID: j.ID, Job: job}}, j.CreatedAt)
	st.RunAt = model.Window{From: j.CreatedAt, To: farAhead}
	return st
}

// farAhead is later than anything, and near enough for a time.Duration.
var farAhead = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)

// fingerprint is all of a state that later steps depend on.
func fingerprint(s model.State) string {
	var b strings.Builder
	fmt.Fprint(&b, s.Phase, s.RunAt.From.UnixMicro(), s.RunAt.To.UnixMicro(), s.AttemptsUsed, s.Expirations,
		s.FreeReturns, s.LeaseNo, s.ActedOn, s.Resolved, s.CompletedLate, len(s.Checkpoint), string(s.Checkpoint))
	if s.CancelRequestedAt != nil {
		fmt.Fprint(&b, " cancel ", s.CancelRequestedAt.UnixMicro())
	}
	for _, l := range s.Leases {
		late := int64(0)
		if l.LateCalls != nil {
			late = l.LateCalls.Count
		}
		fmt.Fprint(&b, " lease ", l.LeaseNo, l.End, l.Counted, late, l.Beats, l.Until.UnixMicro(), l.Digest)
	}
	return b.String()
}

// lease finds the row of a lease.
func (s *specification) lease(no int64) (store.LeaseRecord, bool) {
	i := slices.IndexFunc(s.row.Leases, func(l store.LeaseRecord) bool { return l.LeaseNo == no })
	if i < 0 {
		return store.LeaseRecord{}, false
	}
	return s.row.Leases[i], true
}
