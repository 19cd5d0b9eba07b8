package clienttest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/leasehold/leasehold/client"
	"github.com/leasehold/leasehold/client/clienttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type payment struct {
	Amount int `json:"amount"`
}

// settle is a handler as a user would write it.
var settle = client.JSONResult(func(ctx context.Context, job *client.Job, p payment) (map[string]int64, error) {
	if p.Amount < 0 {
		return nil, client.WithCode("negative", client.Permanent(errors.New("a payment of nothing")))
	}
	if job.LastStage() != "psp_call" {
		if err := job.Stage(ctx, "psp_call"); err != nil {
			return nil, err
		}
	}
	if err := job.Checkpoint(ctx, fmt.Appendf(nil, "paid %d", p.Amount)); err != nil {
		return nil, err
	}
	job.ThenEnqueue(client.NewJob{Queue: "receipts", Subject: job.Subject(), Delay: time.Minute})
	return map[string]int64{"fence": job.LeaseNo()}, nil
})

func amount(t *testing.T, n int) client.Payload {
	t.Helper()
	p, err := client.JSONPayload(payment{n})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestCompleted(t *testing.T) {
	t.Parallel()
	got := clienttest.Run(t, settle, clienttest.Job{Payload: amount(t, 42), Subject: "payment/1", Attempt: 3})
	if got.End != clienttest.Completed || string(got.Result.Data) != `{"fence":3}` || !got.Result.JSON {
		t.Errorf("%s, result %s", got.End, got.Result.Data)
	}
	if !slices.Equal(got.Stages, []string{"psp_call"}) || len(got.Checkpoints) != 1 || string(got.Checkpoints[0]) != "paid 42" {
		t.Errorf("stages %q, checkpoints %q", got.Stages, got.Checkpoints)
	}
	if then := got.ThenEnqueue; len(then) != 1 || then[0].Queue != "receipts" || then[0].Subject != "payment/1" || then[0].Delay != time.Minute {
		t.Errorf("follow-ups %+v", then)
	}
}

func TestWhatAnEarlierLeaseLeft(t *testing.T) {
	t.Parallel()
	got := clienttest.Run(t, settle, clienttest.Job{Payload: amount(t, 1), LastStage: "psp_call", LeaseNo: 9})
	if len(got.Stages) != 0 || string(got.Result.Data) != `{"fence":9}` {
		t.Errorf("stages %q, result %s", got.Stages, got.Result.Data)
	}
}

func TestFailed(t *testing.T) {
	t.Parallel()
	got := clienttest.Run(t, settle, clienttest.Job{Payload: amount(t, -1)})
	if got.End != clienttest.Failed || !got.Permanent || got.Code != "negative" || got.Message != "a payment of nothing" || got.RetryAfter != nil {
		t.Errorf("%+v", got)
	}
	got = clienttest.Run(t, func(context.Context, *client.Job) error {
		return client.ThenEnqueue(client.RetryAfter(time.Minute, errors.New("no")), client.NewJob{Queue: "cases"})
	}, clienttest.Job{})
	if got.End != clienttest.Failed || got.Permanent || *got.RetryAfter != time.Minute || got.ThenEnqueue[0].Queue != "cases" {
		t.Errorf("%+v", got)
	}
	if got := clienttest.Run(t, func(context.Context, *client.Job) error { panic("no") }, clienttest.Job{}); got.Code != "panic" || got.Details == "" {
		t.Errorf("%+v", got)
	}
}

func TestReleased(t *testing.T) {
	t.Parallel()
	got := clienttest.Run(t, func(context.Context, *client.Job) error { return client.Release(time.Hour) }, clienttest.Job{})
	if got.End != clienttest.Released || *got.RetryAfter != time.Hour {
		t.Errorf("%+v", got)
	}
}

// TestWhatBefallsALease: the handler sees its cause, and what it returns becomes the right end.
func TestWhatBefallsALease(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		befall func(*clienttest.Execution)
		cause  any
		end    clienttest.End
	}{
		"cancelled": {(*clienttest.Execution).Cancel, new(*client.CancelRequestedError), clienttest.Released},
		"lost":      {(*clienttest.Execution).Lose, new(*client.LostError), clienttest.Silent},
		"shut down": {(*clienttest.Execution).Shutdown, new(*client.ShutdownError), clienttest.Released},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var cause error
			run := clienttest.Start(t, func(ctx context.Context, job *client.Job) error {
				job.Progress(0.5)
				if err := job.Stage(ctx, "waiting"); err != nil {
					return err
				}
				<-ctx.Done()
				cause = context.Cause(ctx)
				return cause
			}, clienttest.Job{})
			run.AwaitStage("waiting")
			c.befall(run)
			got := run.Wait()
			if !errors.As(cause, c.cause) || got.End != c.end || got.Progress == nil || *got.Progress != 0.5 {
				t.Errorf("cause %v, %+v", cause, got)
			}
		})
	}
}
