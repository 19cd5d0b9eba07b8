package conformance

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// fault is what happens to one call instead of the usual. The zero value is nothing.
type fault struct {
	refuse *refusal      // the answer; the call has no effect, but that a lost lease stays lost
	delay  time.Duration // the call takes effect at once, and is answered so much later
	lose   bool          // the call takes effect, and its connection is cut instead of an answer
	hang   bool          // the call has no effect and no answer
	cancel bool          // CancelJob comes first: the answer says so
}

// service is a LeaseService in memory with one queue, which does to each call what a script says.
// What is not at fault it answers as the contract has it.
type service struct {
	pb.UnimplementedLeaseServiceServer
	queue string
	conns *cutter
	began time.Time

	mu      sync.Mutex
	changed chan struct{} // closed, and made anew, whenever something happens
	closing chan struct{}
	pending []*job
	jobs    []*job
	leases  []*lease
	tokens  map[string]*lease
	asked   map[string]*call // acquires that were granted leases, by request id
	calls   []*call
	length  time.Duration // of leases
	loses   int           // answers with leases that will be lost
	script  func(c *call) fault
}

func newService(queue string, conns *cutter, length time.Duration) *service {
	return &service{
		queue: queue, conns: conns, began: time.Now(), length: length,
		changed: make(chan struct{}), closing: make(chan struct{}), tokens: map[string]*lease{}, asked: map[string]*call{},
	}
}

func (s *service) now() time.Duration { return time.Since(s.began) }

// note tells all who wait that something happened. The caller holds the lock.
func (s *service) note() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// offer adds jobs whose work takes so many seconds each.
func (s *service) offer(seconds ...int) []*job {
	jobs := make([]*job, len(seconds))
	for i, n := range seconds {
		jobs[i] = s.prepare(n)
	}
	s.publish(jobs...)
	return jobs
}

// prepare makes a job that is not offered yet.
func (s *service) prepare(seconds int) *job {
	s.mu.Lock()
	defer s.mu.Unlock()
	j := &job{id: len(s.jobs) + 1, seconds: seconds}
	s.jobs = append(s.jobs, j)
	return j
}

// publish offers jobs.
func (s *service) publish(jobs ...*job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = append(s.pending, jobs...)
	s.note()
}

// arrive notes a call. The caller holds the lock.
func (s *service) arrive(c *call) *call {
	c.at = s.now()
	s.calls = append(s.calls, c)
	if c.lease != nil {
		c.lease.calls = append(c.lease.calls, c)
		c.lease.delivered = true // who calls with a token has it
	}
	s.note()
	return c
}

// faultOf asks the script. The caller holds the lock.
func (s *service) faultOf(c *call) fault {
	if s.script == nil {
		return fault{}
	}
	return s.script(c)
}

// answer notes what a call was answered. The caller holds the lock.
func (s *service) answer(c *call, said string) {
	c.answer, c.answered = said, s.now()
	if l := c.lease; l != nil && l.told == 0 && l.loss != nil && said == l.loss.word() {
		l.told = c.answered
	}
	s.note()
}

// AcquireLease grants what is pending, waits where nothing is, and repeats its answer for a
// request_id that it knows.
func (s *service) AcquireLease(ctx context.Context, req *pb.AcquireLeaseRequest) (*pb.AcquireLeaseResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.arrive(&call{
		method: callAcquire, requestID: req.GetRequestId(), maxJobs: max(int(req.GetMaxJobs()), 1), wait: req.GetWait().AsDuration(),
		arguments: fmt.Sprint(req.GetQueues(), req.GetLeaseOwner(), max(req.GetMaxJobs(), 1), req.GetLeaseDuration().AsDuration()),
	})
	if f := s.faultOf(c); f.refuse != nil || f.hang || f.lose {
		return nil, s.acquireFails(ctx, c, f)
	}
	if r := s.faulty(req); r != nil {
		s.answer(c, r.word())
		return nil, refusedCall(ctx, r)
	}
	before := s.asked[c.requestID]
	if c.requestID != "" && before != nil {
		return s.again(ctx, c, before)
	}
	s.await(ctx, min(req.GetWait().AsDuration(), untilDeadline(ctx)-500*time.Millisecond))
	if err := ctx.Err(); err != nil {
		s.answer(c, answerGone)
		return nil, status.FromContextError(err).Err()
	}
	waited := s.now() - c.at
	resp := s.grant(c, req.GetLeaseOwner(), waited)
	if len(c.granted) > 0 && s.loses > 0 {
		s.loses--
		return nil, s.acquireLost(ctx, c)
	}
	s.delivered(c)
	return resp, nil
}

// untilDeadline is what is left of a call; an hour where it has no deadline.
func untilDeadline(ctx context.Context) time.Duration {
	if end, ok := ctx.Deadline(); ok {
		return time.Until(end)
	}
	return time.Hour
}

// faulty is what the service would refuse in an acquire.
func (s *service) faulty(req *pb.AcquireLeaseRequest) *refusal {
	n := req.GetMaxJobs()
	if req.GetLeaseOwner() == "" || (len(req.GetQueues()) > 0) == (req.JobId != nil) || req.MaxJobs != nil && (n < 1 || n > 1000) {
		return refuse(pb.ErrorReason_ERROR_REASON_INVALID_REQUEST)
	}
	if req.JobId != nil {
		return refuse(pb.ErrorReason_ERROR_REASON_JOB_NOT_FOUND)
	}
	for _, q := range req.GetQueues() {
		if q != s.queue {
			return refuse(pb.ErrorReason_ERROR_REASON_QUEUE_NOT_FOUND)
		}
	}
	return nil
}

// await waits until a job is pending, at most so long. The caller holds the lock.
func (s *service) await(ctx context.Context, wait time.Duration) {
	if wait <= 0 {
		return
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for len(s.pending) == 0 && ctx.Err() == nil {
		changed := s.changed
		s.mu.Unlock()
		over := false
		select {
		case <-changed:
		case <-ctx.Done():
		case <-s.closing:
			over = true
		case <-timer.C:
			over = true
		}
		s.mu.Lock()
		if over {
			return
		}
	}
}

// grant leases pending jobs. The caller holds the lock.
func (s *service) grant(c *call, owner string, waited time.Duration) *pb.AcquireLeaseResponse {
	n := min(c.maxJobs, len(s.pending))
	for _, j := range s.pending[:n] {
		l := &lease{job: j, no: int64(len(j.leases) + 1), request: c.requestID, granted: s.now(), length: s.length}
		l.since = l.granted
		l.token = fmt.Sprintf("conformance-%d-%d", j.id, l.no)
		j.leases = append(j.leases, l)
		s.leases = append(s.leases, l)
		s.tokens[l.token] = l
		c.granted = append(c.granted, l)
	}
	s.pending = s.pending[n:]
	if c.requestID != "" && n > 0 {
		s.asked[c.requestID] = c
	}
	return s.response(c.granted, owner, waited)
}

// again answers a request id that was used before with the leases that it took and that still live.
func (s *service) again(ctx context.Context, c, before *call) (*pb.AcquireLeaseResponse, error) {
	if c.arguments != before.arguments {
		r := refuse(pb.ErrorReason_ERROR_REASON_REQUEST_ID_REUSED)
		s.answer(c, r.word())
		return nil, refusedCall(ctx, r)
	}
	for _, l := range before.granted {
		if l.ended == "" && l.loss == nil && s.now() < l.until() {
			c.granted = append(c.granted, l)
		}
	}
	s.delivered(c)
	return s.response(c.granted, "", 0), nil
}

func (s *service) delivered(c *call) {
	for _, l := range c.granted {
		l.delivered = true
	}
	s.answer(c, answerOK)
}

func (s *service) response(leases []*lease, owner string, waited time.Duration) *pb.AcquireLeaseResponse {
	resp := &pb.AcquireLeaseResponse{Waited: durationpb.New(waited)}
	if len(leases) == 0 {
		resp.EmptyReason = pb.EmptyReason_EMPTY_REASON_NO_READY_JOBS
	}
	for _, l := range leases {
		left := l.until() - s.now()
		until := timestamppb.New(time.Now().Add(left))
		resp.Leases = append(resp.Leases, &pb.Lease{
			Job: &pb.Job{
				JobId: fmt.Sprint(l.job.id), Queue: s.queue, State: pb.JobState_JOB_STATE_PROCESSING, Priority: 5, LeaseNo: l.no,
				LeaseOwner: proto.String(owner), LeaseUntil: until, CreatedAt: timestamppb.New(s.began), RunAt: timestamppb.New(s.began),
				Payload: &pb.Payload{ContentType: "application/json", Content: &pb.Payload_Json{Json: fmt.Sprintf(`{"seconds":%d}`, l.job.seconds)}},
			},
			LeaseToken: l.token, LeaseNo: l.no, Attempt: int32(l.no), MaxAttempts: 25, LeaseUntil: until,
			Remaining: durationpb.New(left), NextHeartbeatIn: durationpb.New(left / 3),
		})
	}
	return resp
}

// acquireFails answers an acquire that is at fault before it takes anything. The caller holds the
// lock.
func (s *service) acquireFails(ctx context.Context, c *call, f fault) error {
	if f.refuse != nil {
		s.answer(c, f.refuse.word())
		return refusedCall(ctx, f.refuse)
	}
	if f.lose {
		return s.acquireLost(ctx, c)
	}
	s.answer(c, answerHung)
	s.mu.Unlock()
	defer s.mu.Lock()
	return s.hang(ctx)
}

func (s *service) acquireLost(ctx context.Context, c *call) error {
	s.answer(c, answerCut)
	s.mu.Unlock()
	defer s.mu.Lock()
	s.conns.cut(ctx)
	return status.Error(codes.Unavailable, "the connection is cut")
}

// hang waits until the caller gives up, or the scene ends.
func (s *service) hang(ctx context.Context) error {
	select {
	case <-ctx.Done():
	case <-s.closing:
	}
	return status.Error(codes.DeadlineExceeded, "never answered")
}
