package sidecar

import (
	"context"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

const (
	// inFlight bounds the calls of a lane that run at a time: those that come meanwhile go
	// together.
	inFlight = 2
	// maxItems and maxBytes bound one batch, the service's own bounds.
	maxItems = 500
	maxBytes = 3 << 20
	// maxWaiting bounds the calls of a lane that wait.
	maxWaiting = 10_000
)

// lane merges calls of one kind: what comes while others run goes upstream together, as one
// batch. A call that meets a free lane goes alone and at once.
type lane[Req, Resp proto.Message] struct {
	name string
	// one makes a single call, many a batch of them: an answer for each, nil where its item
	// failed. Then the call is made alone, so that its caller is told what the service says to
	// such a call, with every detail.
	one  func(context.Context, Req) (Resp, outcome)
	many func(context.Context, []Req) ([]*Resp, error)

	mu      sync.Mutex
	waiting []*laneCall[Req, Resp]
	running int
}

type laneCall[Req, Resp proto.Message] struct {
	ctx  context.Context
	req  Req
	done chan struct{}
	resp Resp
	o    outcome
	// alone: the batch has no answer for this call.
	alone bool
}

// do makes one call, and repeats it as persist does.
func (l *lane[Req, Resp]) do(ctx context.Context, req Req) (resp Resp, err error) {
	o := persist(ctx, true, func(ctx context.Context) (o outcome) {
		resp, o = l.try(ctx, req)
		return o
	})
	setMetadata(ctx, o)
	if o.err != nil {
		return resp, explained(o)
	}
	return resp, nil
}

// try makes one call, alone or with others.
func (l *lane[Req, Resp]) try(ctx context.Context, req Req) (Resp, outcome) {
	var none Resp
	c := &laneCall[Req, Resp]{ctx: ctx, req: req, done: make(chan struct{})}
	l.mu.Lock()
	if len(l.waiting) >= maxWaiting {
		l.mu.Unlock()
		return none, overloaded(l.name)
	}
	l.waiting = append(l.waiting, c)
	l.next()
	l.mu.Unlock()
	select {
	case <-c.done:
	case <-ctx.Done():
		return none, outcome{err: status.FromContextError(ctx.Err()).Err()}
	}
	if c.alone {
		return l.one(ctx, req)
	}
	return c.resp, c.o
}

// next starts what waits, as far as there is room. The caller holds the lock.
func (l *lane[Req, Resp]) next() {
	if l.running >= inFlight || len(l.waiting) == 0 {
		return
	}
	n, size := 0, 0
	for n < len(l.waiting) && n < maxItems {
		size += proto.Size(l.waiting[n].req)
		if n > 0 && size > maxBytes {
			break
		}
		n++
	}
	batch := l.waiting[:n:n]
	l.waiting = l.waiting[n:]
	l.running++
	go l.run(batch)
}

// run makes the calls of a batch whose callers still wait.
func (l *lane[Req, Resp]) run(batch []*laneCall[Req, Resp]) {
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.running--
		l.next()
	}()
	live := batch[:0]
	for _, c := range batch {
		if c.ctx.Err() == nil {
			live = append(live, c)
		}
	}
	switch len(live) {
	case 0:
	case 1:
		c := live[0]
		c.resp, c.o = l.one(c.ctx, c.req)
		close(c.done)
	default:
		l.together(live)
	}
}

// together makes one call of many.
func (l *lane[Req, Resp]) together(batch []*laneCall[Req, Resp]) {
	ctx, cancel := context.WithTimeout(context.Background(), tryTimeout) // none of the callers' ends it for the others
	defer cancel()
	reqs := make([]Req, len(batch))
	for i, c := range batch {
		reqs[i] = c.req
	}
	answers, err := l.many(ctx, reqs)
	for i, c := range batch {
		if err != nil || i >= len(answers) || answers[i] == nil {
			c.alone = true
		} else {
			c.resp = *answers[i]
		}
		close(c.done)
	}
}

// setMetadata passes on what came beside an answer.
func setMetadata(ctx context.Context, o outcome) {
	// They fail outside of a call only, where nobody waits for metadata.
	_ = grpc.SetHeader(ctx, answerMD(o.header))
	_ = grpc.SetTrailer(ctx, answerMD(o.trailer))
}

// refusal is an error as the service would give it.
func refusal(code codes.Code, reason, message string, retryAfter time.Duration) outcome {
	st, err := status.New(code, message).WithDetails(
		&errdetails.ErrorInfo{Reason: reason, Domain: "leasehold"}, &errdetails.RetryInfo{RetryDelay: durationpb.New(retryAfter)})
	if err != nil {
		st = status.New(code, message)
	}
	return outcome{err: st.Err(), trailer: metadata.Pairs(reasonTrailer, reason)}
}

func overloaded(name string) outcome {
	return refusal(codes.ResourceExhausted, "OVERLOADED", "the sidecar has no room for more calls of "+name+" that wait", 100*time.Millisecond)
}
