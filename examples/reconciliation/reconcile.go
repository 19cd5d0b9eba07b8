package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/leasehold/leasehold/client"
)

const (
	queueScan   = "reconciliation"
	queueSettle = "settlement"
	// foundMost is how many payments one job finds before it hands on to the next: Complete takes
	// 100 follow-up jobs, and one of them is that next.
	foundMost = 99
)

// scan is the payload of a job in "reconciliation", and its checkpoint.
type scan struct {
	// After is the payment behind which to go on; empty: from the first.
	After string `json:"after"`
	// Found are those that must be settled, as far as the scan has come.
	Found []payment `json:"found,omitempty"`
}

// payment is one payment, as the provider tells it; also the payload of a job in "settlement".
type payment struct {
	ID     string `json:"id"`
	Amount int64  `json:"amount"`
	Status string `json:"status,omitempty"`
}

// reconciler has the handlers.
type reconciler struct {
	provider *provider
	payments *payments
}

// scan pages through the provider until it has found as much as one job may hand on, or has seen all.
func (r *reconciler) scan(ctx context.Context, job *client.Job, at scan) error {
	if saved := job.LastCheckpoint(); len(saved) > 0 {
		if err := json.Unmarshal(saved, &at); err != nil {
			return client.Permanent(fmt.Errorf("the checkpoint: %w", err))
		}
	}
	more := true
	for more && len(at.Found) < foundMost {
		page, err := r.provider.page(ctx, at.After, foundMost-len(at.Found))
		if err != nil {
			return err // an attempt is used; the next one goes on from the checkpoint
		}
		if more = len(page) > 0; !more {
			break
		}
		open, err := r.payments.open(ctx, succeeded(page))
		if err != nil {
			return err
		}
		at.After, at.Found = page[len(page)-1].ID, append(at.Found, open...)
		if err := r.checkpoint(ctx, job, at); err != nil {
			return err
		}
	}
	for _, p := range at.Found {
		job.ThenEnqueue(settlement(p))
	}
	if more {
		next, err := client.JSONPayload(scan{After: at.After})
		if err != nil {
			return err
		}
		// The key of the next part is the job before it, so that a Complete that is repeated, or a
		// job that ran twice, does not make two of it.
		job.ThenEnqueue(client.NewJob{Queue: queueScan, Payload: next, Subject: job.Subject(), IdempotencyKey: "after/" + job.ID()})
	}
	job.Log().Info("scanned", "up_to", at.After, "found", len(at.Found), "more", more)
	return nil
}

// checkpoint returns when the service has the state: a page is asked for only when the one before
// needs no second look.
func (*reconciler) checkpoint(ctx context.Context, job *client.Job, at scan) error {
	state, err := json.Marshal(at)
	if err != nil {
		return err
	}
	return job.Checkpoint(ctx, state)
}

func succeeded(page []payment) (out []payment) {
	for _, p := range page {
		if p.Status == "succeeded" {
			out = append(out, payment{ID: p.ID, Amount: p.Amount})
		}
	}
	return out
}

func settlement(p payment) client.NewJob {
	payload, _ := client.JSONPayload(p) // text and a number: it cannot fail
	return client.NewJob{Queue: queueSettle, Payload: payload, Subject: "payment/" + p.ID, IdempotencyKey: "settle/" + p.ID}
}

// settle settles one payment. Run twice, also beside itself, it settles it once.
func (r *reconciler) settle(ctx context.Context, job *client.Job, p payment) (settled, error) {
	done, err := r.payments.settle(ctx, p, job.ID(), job.LeaseNo())
	return settled{Now: done}, err
}

// settled is the result of a job in "settlement".
type settled struct {
	// Now is false where the payment had been settled before.
	Now bool `json:"now"`
}
