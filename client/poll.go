package client

import (
	"context"
	"log/slog"
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

const (
	// pollSlack is what a poll's deadline leaves for the way, on top of its wait.
	pollSlack = 5 * time.Second
	// askTimeout bounds a call that asks again for an answer that was lost, which does not wait.
	askTimeout = 3 * time.Second
	// askTries is how often that is asked. It takes about as long as the service needs to notice
	// that a replica is gone.
	askTries = 6
	// pollRetryFirst and pollRetryMost bound the wait between polls that fail.
	pollRetryFirst = 200 * time.Millisecond
	pollRetryMost  = 10 * time.Second
	// gatherMost bounds the wait for more free slots where the queue has more jobs.
	gatherMost = 20 * time.Millisecond
	// emptyPause is the wait after a poll that found nothing though it did not wait.
	emptyPause = time.Second
)

// poll leases jobs for the free slots until ctx ends. No answer ends it.
func (w *Worker) poll(ctx, values context.Context) {
	var failures, least int
	var patience time.Duration
	for {
		n := w.slots.take(ctx, batchItems, least, patience)
		if n == 0 || w.ending() {
			return
		}
		began := w.now()
		got, failed := w.acquire(ctx, values, n)
		took := w.now().sub(began)
		w.slots.give(n - got)
		var pause time.Duration
		least = 0
		switch {
		case failed != nil:
			pause = w.afterFailure(ctx, failed, failures)
			failures++
		case got == n:
			// There is more. Fewer and larger polls cost the service less: half of the slots should
			// be free, if that does not take longer than a poll does.
			failures, least, patience = 0, min(w.cfg.Concurrency, batchItems)/2, min(took, gatherMost)
		case got == 0 && took < emptyPause:
			failures, pause = 0, backoff(0, emptyPause, emptyPause)
		default:
			failures = 0
		}
		if !sleep(ctx, pause) {
			return
		}
	}
}

// afterFailure is how long to wait: not at all while there are replicas that have not failed.
func (w *Worker) afterFailure(ctx context.Context, failed *CallError, failures int) time.Duration {
	if ctx.Err() != nil {
		return 0
	}
	level := slog.LevelWarn
	if failed.final() {
		level = slog.LevelError // a queue that does not exist, a role that is missing: for people
	}
	w.cfg.Log.LogAttrs(ctx, level, "no leases", slog.Int("failures", failures+1), slog.String("error", failed.describe()))
	if failed.elsewhere() && failures+1 < w.service.polls.size() {
		return 0
	}
	return max(backoff(failures, pollRetryFirst, pollRetryMost), failed.RetryAfter)
}

// acquire makes one poll for n leases and begins what it gets. Where its answer may be lost, it
// asks again with the same request id, which gives the same leases and no others.
func (w *Worker) acquire(ctx, values context.Context, n int) (got int, failed *CallError) {
	id := w.idBase + "-" + strconv.FormatInt(w.lastID.Add(1), 36)
	most := int32(n)
	req := &pb.AcquireLeaseRequest{
		Queues: w.cfg.Queues, LeaseOwner: w.cfg.Owner, MaxJobs: &most, RequestId: &id, Wait: durationpb.New(w.cfg.Wait),
	}
	if w.cfg.LeaseDuration > 0 {
		req.LeaseDuration = durationpb.New(w.cfg.LeaseDuration)
	}
	got, failed = w.ask(ctx, values, req, w.cfg.Wait+pollSlack)
	req.Wait = nil
	for try := 0; failed != nil && !failed.undone() && try < askTries; try++ {
		// At a shutdown this is how leases that were on their way are found, and given back.
		if try > 0 && !sleep(ctx, max(backoff(try-1, pollRetryFirst, pollRetryMost), failed.RetryAfter)) {
			return got, failed
		}
		first := failed
		if got, failed = w.ask(values, values, req, askTimeout); failed != nil && failed.undone() && !failed.final() {
			failed = first // the other try is still in doubt
		}
	}
	return got, failed
}

// ask makes one call and begins the leases that it answers.
func (w *Worker) ask(ctx, values context.Context, req *pb.AcquireLeaseRequest, timeout time.Duration) (int, *CallError) {
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	sent := w.now()
	way := w.service.polls.pick()
	resp, err := way.leases.AcquireLease(bounded, req)
	if err != nil {
		failed := callError(err)
		w.metrics.poll(failed)
		return 0, failed
	}
	w.metrics.poll(nil)
	granted := resp.GetLeases()
	w.begin(values, granted, sent.add(resp.GetWaited().AsDuration()))
	return len(granted), nil
}

// sleep is false where ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
