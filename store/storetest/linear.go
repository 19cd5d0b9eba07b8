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
	// Repeats tells that what answers may have tried a repeatable call more than once, see
	// Recorder. A job that its calls do not explain is then judged again, with a try before
	// each call that may have taken effect, or not, without its caller being told.
	Repeats bool
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
		s := &specification{cfg: cfg, row: row, queue: cfg.Queues[row.Job.Queue], aged: maybe[model.Age](byJob[id])}
		if err := s.judge(byJob[id]); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (s *specification) judge(calls History) error {
	ops := s.operations(calls)
	verdict := porcupine.CheckOperationsTimeout(s.model(), ops, s.cfg.Timeout)
	if verdict == porcupine.Illegal && s.cfg.Repeats {
		verdict = porcupine.CheckOperationsTimeout(s.model(), append(ops, hiddenTries(calls)...), s.cfg.Timeout)
	}
	switch verdict {
	case porcupine.Illegal:
		return fmt.Errorf("no order of the calls explains job %d:\n%s", s.row.Job.ID, describe(ops))
	case porcupine.Unknown:
		return fmt.Errorf("job %d could not be judged within %s", s.row.Job.ID, s.cfg.Timeout)
	}
	return nil
}

// describe lists operations by their beginning, in milliseconds since the first.
func describe(ops []porcupine.Operation) string {
	ops = slices.Clone(ops)
	slices.SortStableFunc(ops, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	var b strings.Builder
	for _, op := range ops {
		end := "open"
		if op.Return != math.MaxInt64 {
			end = fmt.Sprint((op.Return - ops[0].Call) / int64(time.Millisecond))
		}
		fmt.Fprintf(&b, "  %d to %s: %v\n", (op.Call-ops[0].Call)/int64(time.Millisecond), end, op.Input)
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
	aged  bool
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
// history begins with by the row itself; leases whose answer was lost, which the tables
// tell; and repetitions of a request whose leases are gone.
func skipped(c Call) bool {
	switch r := c.Request.(type) {
	case model.Enqueue:
		return true
	case model.Acquire:
		gone := c.RequestID != "" && r.ByID && c.Outcome.Err == nil && c.Outcome.Empty == store.NoReadyJobs
		return c.Unknown || c.Outcome.Empty == store.QueuePaused || gone
	}
	return false
}

// commitTime bounds how long after its time on record a lease may have become visible: the
// clock is read before the commit.
const commitTime = 2 * time.Second

// silentCalls are the leases on record of which no answer tells when they were taken: no
// caller was told, or those of a request that was repeated, of which any try may have been
// the one.
func (s *specification) silentCalls(calls History) (silent History) {
	told := map[int64]Call{}
	for _, c := range calls {
		if c.granted() {
			told[c.Outcome.LeaseNo] = c
		}
	}
	for _, l := range s.row.Leases {
		c, ok := told[l.LeaseNo]
		if ok && c.RequestID == "" {
			continue
		}
		request := model.Acquire{Owner: l.Owner, ByID: true}
		if ok {
			request.Duration = c.Request.(model.Acquire).Duration
		}
		silent = append(silent, Call{
			Start: l.LeasedAt.Add(-s.cfg.ClockSlack), End: l.LeasedAt.Add(s.cfg.ClockSlack + commitTime), Job: l.JobID, Bare: true,
			Request: request, Outcome: model.Outcome{LeaseNo: l.LeaseNo, Until: l.Until},
		})
	}
	return silent
}

// granted tells that a call was answered with a lease.
func (c Call) granted() bool {
	_, ok := c.Request.(model.Acquire)
	return ok && answeredOK(c) && c.Outcome.LeaseNo != 0
}

// hiddenTries are the tries that came before those that were answered: each may have taken
// effect, or not, as a call without an answer.
func hiddenTries(calls History) (tries []porcupine.Operation) {
	for _, c := range calls {
		if skipped(c) || c.RequestID != "" || !c.repeatable() {
			continue
		}
		c.Unknown = true
		tries = append(tries, porcupine.Operation{ClientId: c.Client, Input: c, Call: c.Start.UnixNano(), Return: math.MaxInt64})
	}
	return tries
}

func (s *specification) model() porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{s.created()} },
		Step: func(state, input, _ any) []any {
			if _, over := state.(afterwards); over {
				return []any{afterwards{}}
			}
			var out []any
			for _, next := range s.step(state.(model.State), input) {
				out = append(out, next)
			}
			if _, isLast := input.(finalRead); isLast && len(out) > 0 {
				return []any{afterwards{}}
			}
			return out
		},
		Equal: func(a, b any) bool { return s.fingerprint(a) == s.fingerprint(b) },
		Hash: func(a any) uint64 {
			f := fnv.New64a()
			_, _ = f.Write([]byte(s.fingerprint(a))) // it never fails
			return f.Sum64()
		},
	}
	return m.ToModel()
}

// afterwards is the state behind the last operation. Calls without an answer that never took
// effect stand here, and only here: that they might as well stand anywhere before would
// make the search endless.
type afterwards struct{}

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
func (s *specification) fingerprint(state any) string {
	st, ok := state.(model.State)
	if !ok {
		return "afterwards"
	}
	var b strings.Builder
	fmt.Fprint(&b, st.Phase, st.RunAt.From.UnixMicro(), st.RunAt.To.UnixMicro(), st.AttemptsUsed, st.Expirations,
		st.FreeReturns, st.LeaseNo, st.ActedOn, st.Resolved, st.CompletedLate, len(st.Checkpoint), string(st.Checkpoint))
	if st.CancelRequestedAt != nil {
		fmt.Fprint(&b, " cancel ", st.CancelRequestedAt.UnixMicro())
	}
	for _, l := range st.Leases {
		late, beats := int64(0), l.Beats
		if l.LateCalls != nil {
			late = l.LateCalls.Count
		}
		if s.cfg.Repeats { // how many of them is the business of CheckInvariants
			late, beats = 0, min(beats, 1)
		}
		fmt.Fprint(&b, " lease ", l.LeaseNo, l.End, l.Counted, late, beats, l.Until.UnixMicro(), l.Digest)
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
