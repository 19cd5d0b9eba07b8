package server

import (
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
)

const (
	// deadlineReserve is left of the caller's deadline for the empty answer to arrive: a
	// poll that ends at the deadline itself is an error at the caller.
	deadlineReserve = 500 * time.Millisecond
	// recheckInterval is how often a poll for one job looks again: there is no statement
	// that tells of one job what ReadyQueues tells of queues.
	recheckInterval = time.Second
)

// longPoll answers AcquireLease: it tries at once and, where nothing is ready, parks.
type longPoll struct {
	claims   *claims
	waiters  *waiters
	wakes    *wakes
	sweep    *earlySweep
	draining <-chan struct{}
}

// acquire takes leases, waiting for up to wait. The answer may be empty. Leases in it are
// taken: the caller of acquire must deliver them or give them back.
func (p *longPoll) acquire(ctx context.Context, item store.Acquire, wait time.Duration) (store.Acquired, error) {
	select {
	case <-p.draining:
		return store.Acquired{}, &DrainingError{}
	default:
	}
	end := pollEnd(ctx, time.Now(), wait)
	w := newWaiter(item)
	begin := func() {}
	if wait > 0 {
		begin = func() { p.waiters.park(w) }
	}
	defer func() { p.wakes.handOn(p.waiters.leave(w)) }()

	got, err := p.first(ctx, item, begin)
	for err == nil && wait > 0 && len(got.Leases) == 0 && got.Empty != store.JobFinished {
		var over bool
		var g *grant
		if g, over, err = p.park(ctx, w, end); over {
			got.Empty = p.waiters.pauseOf(item.Queues, got.Empty)
			return got, nil
		} else if err == nil {
			got, err = p.again(ctx, item, begin, g, end, got.Empty)
		}
	}
	return got, err
}

// pollEnd is when a poll must answer, whatever has come.
func pollEnd(ctx context.Context, now time.Time, wait time.Duration) time.Time {
	end := now.Add(wait)
	if deadline, ok := ctx.Deadline(); ok && deadline.Add(-deadlineReserve).Before(end) {
		end = deadline.Add(-deadlineReserve)
	}
	return end
}

// first tries at once. Where it finds nothing, expired leases of the queues may be all
// there is: it lets their sweep run early and tries once more if that ended any (R38).
func (p *longPoll) first(ctx context.Context, item store.Acquire, begin func()) (store.Acquired, error) {
	got, err := p.claims.claim(ctx, p.draining, item, begin)
	if err != nil || len(got.Leases) > 0 || len(item.Queues) == 0 || got.Empty == store.QueuePaused {
		return got, err
	}
	if p.sweep.run(ctx, item.Queues) == 0 {
		return got, nil
	}
	return p.claims.claim(ctx, p.draining, item, begin)
}

// again claims for a waiter that was woken, and passes the wake on as far as the claim left
// it unused. An error of the item is the caller's own, the next waiter may fare better; an
// error of the store would only meet that one, too.
func (p *longPoll) again(ctx context.Context, item store.Acquire, begin func(), g *grant, end time.Time, before store.EmptyReason) (store.Acquired, error) {
	inTime, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	got, err := p.claims.claim(inTime, p.draining, item, begin)
	switch {
	case err == nil:
		p.wakes.uncovered(g, p.waiters.passOn(g, got.Leases))
	case errors.Is(err, context.DeadlineExceeded) && !isOutage(err) && ctx.Err() == nil:
		// Its claim did not begin before the poll was over, which is an empty answer.
		p.wakes.handOn(g)
		return store.Acquired{Empty: before}, nil
	case !isOutage(err):
		p.wakes.handOn(g)
	}
	return got, err
}

func isOutage(err error) bool {
	_, ok := errors.AsType[*store.UnavailableError](err)
	return ok
}

// park waits until w is woken, the time of the poll is over, the caller is gone or the
// replica drains. It holds nothing but its place in the registry.
func (p *longPoll) park(ctx context.Context, w *waiter, end time.Time) (g *grant, over bool, err error) {
	until := end
	if look := time.Now().Add(recheckInterval); w.job != 0 && look.Before(end) {
		until = look
	}
	p.wakes.poll.waitFor(w.queues)
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-w.signal:
		return p.waiters.take(w), false, nil
	case <-timer.C:
		return nil, until.Equal(end), nil
	case <-ctx.Done():
		return nil, false, ctx.Err()
	case <-p.draining:
		return nil, false, &DrainingError{}
	}
}

// AcquireLease implements the method of the proto. Whether the caller is still there is
// checked at the very last moment before the answer goes to gRPC: what is lost behind that
// (a connection that breaks while the answer is on its way) nobody on this side can see,
// and those leases run until they expire.
func (l *leaseService) AcquireLease(ctx context.Context, req *pb.AcquireLeaseRequest) (resp *pb.AcquireLeaseResponse, err error) {
	s, start := l.Server, time.Now()
	in := s.intake()
	item, wait := in.acquire(req)
	if err := in.err(); err != nil {
		return nil, err
	}
	got, err := s.polls.acquire(ctx, item, wait)
	delivered := 0
	defer func() { s.giveBack(ctx, got.Leases[delivered:], item.RequestID) }()
	if err != nil {
		return nil, err
	}
	resp = s.leasesOut(got)
	resp.Waited = durationpb.New(callOf(ctx).waited(start))
	callOf(ctx).setLeases(len(resp.GetLeases()))
	linkProducers(ctx, got.Leases[:len(resp.GetLeases())])
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	delivered = len(resp.GetLeases())
	return resp, nil
}

// leasesOut makes the answer. The store bounds the content; what comes on top, as the texts
// of last errors, may still pass the limit of the caller's gRPC library, which would refuse
// the answer and lose every lease in it: then those texts go first, and after them the last
// leases, which the caller of leasesOut gives back.
func (s *Server) leasesOut(got store.Acquired) *pb.AcquireLeaseResponse {
	n := len(got.Leases)
	resp := &pb.AcquireLeaseResponse{EmptyReason: pb.EmptyReason(got.Empty), Leases: make([]*pb.Lease, n)}
	messages := newArena(n)
	for i := range got.Leases {
		resp.Leases[i] = s.leaseOut(messages, &got.Leases[i])
	}
	if proto.Size(resp) <= maxAnswerBytes {
		return resp
	}
	for _, l := range resp.Leases {
		if e := l.GetJob().GetLastError(); e != nil {
			e.Message, e.Details = cut(e.Message, maxMessageBytes), ""
		}
	}
	for len(resp.Leases) > 1 && proto.Size(resp) > maxAnswerBytes {
		resp.Leases = resp.Leases[:len(resp.Leases)-1]
	}
	return resp
}
