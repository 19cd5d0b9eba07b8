package storetest

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/storetest/model"
)

// The outcomes of a Store's answers, in the words of the model.

func beatOutcome(ref store.LeaseRef, b store.Beaten) model.Outcome {
	return model.Outcome{
		Err: b.Err, LeaseNo: ref.LeaseNo, Until: b.Until, Remaining: b.Remaining, CancelRequested: b.CancelRequested,
	}
}

func completeOutcome(c store.Completion) model.Outcome {
	return model.Outcome{Err: c.Err, AlreadyApplied: c.AlreadyApplied, Late: c.Late, FollowUps: c.FollowUps}
}

func endedOutcome(x store.Ended) model.Outcome {
	o := model.Outcome{
		Err: x.Err, State: x.State, AttemptsLeft: x.AttemptsLeft, AlreadyApplied: x.AlreadyApplied, FollowUps: x.FollowUps,
	}
	if x.NextRunAt != nil {
		o.RunAt = model.At(*x.NextRunAt)
	}
	return o
}

func cancelOutcome(c store.CancelResult) model.Outcome {
	return model.Outcome{Requested: c.Requested, State: c.State}
}

// explains tells why the answer of a call is not the one that the model gives, or nil.
// Times may lie tolerance apart, because the model was asked with the caller's clock.
func explains(c Call, want model.Outcome, tolerance time.Duration) error {
	got := c.Outcome
	if err := sameError(want.Err, got.Err, c.Bare); err != nil || got.Err != nil {
		return err
	}
	switch c.Request.(type) {
	case model.Acquire:
		return explainsLease(c, want, tolerance)
	case model.Heartbeat:
		if want.CancelRequested != got.CancelRequested {
			return fmt.Errorf("cancel_requested %t, want %t", got.CancelRequested, want.CancelRequested)
		}
		return near(got.Until, want.Until, tolerance, "lease_until")
	case model.Complete:
		if want.AlreadyApplied != got.AlreadyApplied || want.Late != got.Late || !slices.Equal(want.FollowUps, got.FollowUps) {
			return fmt.Errorf("already applied %t, late %t, follow-ups %v; want %t, %t, %v",
				got.AlreadyApplied, got.Late, got.FollowUps, want.AlreadyApplied, want.Late, want.FollowUps)
		}
	case model.Fail, model.Release:
		return explainsEnd(c, want, tolerance)
	case model.Cancel:
		if want.Requested != got.Requested || want.State != got.State {
			return fmt.Errorf("requested %t, state %s; want %t, %s", got.Requested, got.State, want.Requested, want.State)
		}
	case model.Retry, model.Resolve:
		if want.State != got.State {
			return fmt.Errorf("state %s, want %s", got.State, want.State)
		}
	}
	return nil
}

func explainsLease(c Call, want model.Outcome, tolerance time.Duration) error {
	got := c.Outcome
	if want.Empty != got.Empty {
		return fmt.Errorf("empty reason %d, want %d", got.Empty, want.Empty)
	}
	if got.Empty != store.NotEmpty {
		return nil
	}
	if want.LeaseNo != got.LeaseNo {
		return fmt.Errorf("lease %d, want %d", got.LeaseNo, want.LeaseNo)
	}
	if c.Bare {
		return nil
	}
	if want.Attempt != got.Attempt {
		return fmt.Errorf("attempt %d, want %d", got.Attempt, want.Attempt)
	}
	if string(want.Checkpoint) != string(got.Checkpoint) {
		return fmt.Errorf("checkpoint %q, want %q", got.Checkpoint, want.Checkpoint)
	}
	return near(got.Until, want.Until, tolerance, "lease_until")
}

// explainsEnd compares the answers of Fail and Release. What a repeated call answers of
// the job's present state is the Store's choice once another lease exists.
func explainsEnd(c Call, want model.Outcome, tolerance time.Duration) error {
	got := c.Outcome
	if want.AlreadyApplied != got.AlreadyApplied || !slices.Equal(want.FollowUps, got.FollowUps) {
		return fmt.Errorf("already applied %t, follow-ups %v; want %t, %v",
			got.AlreadyApplied, got.FollowUps, want.AlreadyApplied, want.FollowUps)
	}
	if got.AlreadyApplied {
		return nil
	}
	_, isFail := c.Request.(model.Fail)
	if want.State != got.State || isFail && want.AttemptsLeft != got.AttemptsLeft {
		return fmt.Errorf("state %s, %d attempts left; want %s, %d", got.State, got.AttemptsLeft, want.State, want.AttemptsLeft)
	}
	if got.State == store.Pending && !want.RunAt.Holds(got.RunAt.From, tolerance) {
		return fmt.Errorf("next run at %s, want %s to %s", got.RunAt.From, want.RunAt.From, want.RunAt.To)
	}
	return nil
}

func near(got, want time.Time, tolerance time.Duration, what string) error {
	if model.At(want).Holds(got, tolerance) {
		return nil
	}
	return fmt.Errorf("%s is %s, want %s", what, got, want)
}

// sameError compares two errors: their types, and unless bare their facts.
func sameError(want, got error, bare bool) error {
	w, g := errorWord(want), errorWord(got)
	if bare {
		w, g = fmt.Sprintf("%T", want), fmt.Sprintf("%T", got)
	}
	if w != g {
		return fmt.Errorf("answered %s (%w), want %s (%w)", g, orOK(got), w, orOK(want))
	}
	return nil
}

func orOK(err error) error {
	if err == nil {
		return errors.New("OK")
	}
	return err
}

// errorWord is an error as type and facts, as far as they are not texts.
func errorWord(err error) string {
	var (
		superseded *store.SupersededError
		expired    *store.ExpiredError
		ended      *store.EndedError
		state      *store.StateError
	)
	switch {
	case err == nil:
		return "OK"
	case errors.As(err, &superseded):
		return fmt.Sprintf("superseded %+v", *superseded)
	case errors.As(err, &expired):
		return fmt.Sprintf("expired %+v", *expired)
	case errors.As(err, &ended):
		return fmt.Sprintf("ended %+v", *ended)
	case errors.As(err, &state):
		return fmt.Sprintf("wrong state %d %s", state.JobID, state.State)
	}
	return fmt.Sprintf("%T", err)
}
