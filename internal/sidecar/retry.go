package sidecar

import (
	"context"
	"math/rand/v2"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const (
	// tryTimeout bounds one try of a call that does not wait for a job: what takes longer is lost
	// in a connection that is dead, and another may be alive.
	tryTimeout = 5 * time.Second
	// patience bounds the repetition for a caller without a deadline.
	patience = 30 * time.Second
	// firstPause and mostPause bound the pause before a repetition.
	firstPause = 20 * time.Millisecond
	mostPause  = time.Second
	// wayBack is left of the caller's time for the last error to reach it.
	wayBack = 20 * time.Millisecond
)

// reasonTrailer is where the service repeats the reason of an error.
const reasonTrailer = "leasehold-reason"

// passing are the reasons that the contract calls repeatable whatever the call was: nothing was
// done.
var passing = map[string]bool{"DRAINING": true, "OVERLOADED": true, "RATE_LIMITED": true, "JOB_BUSY": true, "DATABASE_UNAVAILABLE": true}

// outcome is what one try of a call came to.
type outcome struct {
	header, trailer metadata.MD
	err             error
	// lost: the try ran out of its own time, and not of the caller's.
	lost bool
}

// repeatable tells whether another try may fare better. harmless: the call may be made twice
// although the first one succeeded.
func (o *outcome) repeatable(harmless bool) bool {
	if o.err == nil {
		return false
	}
	if reason := o.trailer.Get(reasonTrailer); len(reason) > 0 {
		return passing[reason[0]] || harmless && reason[0] == "OUTCOME_UNKNOWN"
	}
	return harmless && (o.lost || status.Code(o.err) == codes.Unavailable)
}

// pause is how long to wait before the next try: what the service asks for, or more with each
// failure, a half of it at random.
func (o *outcome) pause(failures int) time.Duration {
	for _, d := range status.Convert(o.err).Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok && info.GetRetryDelay().IsValid() {
			asked := info.GetRetryDelay().AsDuration()
			return asked + rand.N(asked/4+1)
		}
	}
	most := mostPause
	if failures < 10 {
		most = min(firstPause<<failures, mostPause)
	}
	return most/2 + rand.N(most/2+1)
}

// persist makes a call until it succeeds, fails for good, or its caller's time is over. The last
// outcome counts.
func persist(ctx context.Context, harmless bool, try func(context.Context) outcome) outcome {
	return persistFor(ctx, harmless, tryTimeout, try)
}

// persistFor is persist with another time for one try.
func persistFor(ctx context.Context, harmless bool, each time.Duration, try func(context.Context) outcome) outcome {
	until := time.Now().Add(patience)
	if deadline, ok := ctx.Deadline(); ok {
		until = deadline.Add(-wayBack)
	}
	for failures := 0; ; failures++ {
		o := once(ctx, each, try)
		if ctx.Err() != nil || !o.repeatable(harmless) {
			return o
		}
		pause := o.pause(failures)
		if time.Now().Add(pause).After(until) || !sleep(ctx, pause) {
			return o
		}
	}
}

// once makes one try within its own time.
func once(ctx context.Context, each time.Duration, try func(context.Context) outcome) outcome {
	bounded, cancel := context.WithTimeout(ctx, each)
	defer cancel()
	o := try(bounded)
	o.lost = bounded.Err() != nil && ctx.Err() == nil
	return o
}

// sleep waits, unless ctx ends before: then it is false.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
