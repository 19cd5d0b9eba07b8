package storetest

import (
	"context"
	"fmt"
	"time"

	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/storetest/model"
)

// Call is one call on one job as its caller saw it. An AcquireLease by queue is one Call
// for each lease that it answered.
type Call struct {
	Client     int
	Start, End time.Time // by the caller's clock
	Job        store.JobID
	Request    model.Call
	Outcome    model.Outcome
	// Unknown tells that no answer came, or one that leaves open what happened: the call
	// may have taken effect at any time after Start, or never.
	Unknown bool
	// RequestID is that of an AcquireLease, which makes it repeatable: of several that were
	// answered with one lease, or not at all, any may have taken it. Empty: none.
	RequestID string
	// Bare tells that the witness of the call saw less than the caller of a Store does, as
	// one behind gRPC, which has no facts in its errors: only what it saw is compared.
	Bare bool
}

func (c Call) String() string {
	what := c.Outcome.String()
	if c.Unknown {
		what = "unknown"
	}
	return fmt.Sprintf("client %d, job %d: %s %+v: %s", c.Client, c.Job, c.Request.Name(), c.Request, what)
}

// History is what the callers of a Store, or of a service over it, saw. It must be
// complete: every call that may have changed a job of the tables is in it, but for sweeps.
type History []Call

// of are the calls on one job.
func (h History) of(id store.JobID) (calls History) {
	for _, c := range h {
		if c.Job == id {
			calls = append(calls, c)
		}
	}
	return calls
}

// JobRow is one job of the tables with all its leases.
type JobRow struct {
	Job    store.Job // FULL
	Leases []store.LeaseRecord
}

// Tables is what a Store holds at the end, by job.
type Tables map[store.JobID]JobRow

// ReadTables reads every job, or those of some queues.
func ReadTables(ctx context.Context, s store.Store, queues ...string) (Tables, error) {
	filters := []store.JobFilter{{}}
	if len(queues) > 0 {
		filters = nil
		for _, q := range queues {
			filters = append(filters, store.JobFilter{Queue: &q})
		}
	}
	t := Tables{}
	for _, f := range filters {
		for p := (store.Page{Size: 1000}); ; {
			page, err := s.ListJobs(ctx, f, true, p)
			if err != nil {
				return nil, err
			}
			for _, j := range page.Jobs {
				leases, err := readLeases(ctx, s, j.ID)
				if err != nil {
					return nil, err
				}
				t[j.ID] = JobRow{Job: j, Leases: leases}
			}
			if p.After = page.Next; page.Next == 0 {
				break
			}
		}
	}
	return t, nil
}

func readLeases(ctx context.Context, s store.Store, id store.JobID) (out []store.LeaseRecord, err error) {
	for p := (store.Page{Size: 1000}); ; {
		page, err := s.ListLeases(ctx, id, p)
		if err != nil {
			return nil, err
		}
		out = append(out, page.Leases...)
		if p.After = page.Next; page.Next == 0 {
			return out, nil
		}
	}
}
