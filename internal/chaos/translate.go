package main

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/server/servertest/remote"
	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/storetest"
	"github.com/leasehold/leasehold/store/storetest/model"
)

// item is a single call, or one item of a batch.
type item struct {
	*event
	client  int
	request proto.Message
	answer  proto.Message // nil where refused, unknown
	refusal *refusal
}

// unknown tells that nobody knows what became of it.
func (i item) unknown() bool { return i.end.IsZero() || i.refusal.ambiguous() }

// ended is when it was answered: an unknown call may take effect for ever.
func (i item) ended() time.Time {
	if i.end.IsZero() {
		return i.start
	}
	return i.end
}

// split takes batches apart.
func split(events []event) []item {
	var items []item
	processes := map[string]int{}
	for n := range events {
		ev := &events[n]
		if _, ok := processes[ev.process]; !ok {
			processes[ev.process] = len(processes) + 1
		}
		for _, i := range ev.items() {
			i.event, i.client = ev, processes[ev.process]
			items = append(items, i)
		}
	}
	return items
}

func (ev *event) items() []item {
	switch req := ev.request.(type) {
	case *pb.BatchHeartbeatRequest:
		return itemsOf(ev, req.GetItems(), answerOf[*pb.BatchHeartbeatResponse](ev).GetResults())
	case *pb.BatchCompleteRequest:
		return itemsOf(ev, req.GetItems(), answerOf[*pb.BatchCompleteResponse](ev).GetResults())
	case *pb.BatchFailRequest:
		return itemsOf(ev, req.GetItems(), answerOf[*pb.BatchFailResponse](ev).GetResults())
	case *pb.BatchReleaseRequest:
		return itemsOf(ev, req.GetItems(), answerOf[*pb.BatchReleaseResponse](ev).GetResults())
	case *pb.BatchEnqueueRequest:
		return itemsOf(ev, req.GetItems(), answerOf[*pb.BatchEnqueueResponse](ev).GetResults())
	}
	return []item{{request: ev.request, answer: ev.answer, refusal: ev.refusal}}
}

// answerOf is the answer of a call, nil where there is none.
func answerOf[M proto.Message](ev *event) M {
	m, _ := ev.answer.(M)
	return m
}

// batchResult is what a batch answers for one item.
type batchResult[Ok proto.Message] interface {
	GetOk() Ok
	GetError() *pb.ItemError
}

func itemsOf[Req, Ok proto.Message, R batchResult[Ok]](ev *event, reqs []Req, results []R) []item {
	items := make([]item, len(reqs))
	for n, req := range reqs {
		items[n] = item{request: req, refusal: ev.refusal}
		switch {
		case n >= len(results):
		case results[n].GetError() != nil:
			items[n].refusal = itemRefusal(results[n].GetError())
		default:
			items[n].answer = results[n].GetOk()
		}
	}
	return items
}

// translator makes a history of what the journals say. The tables help where an answer was
// lost: a job is told by its payload or key.
type translator struct {
	tokens  *store.Tokens
	stored  *stored
	history storetest.History
}

func translate(items []item, tokens *store.Tokens, tables storetest.Tables) storetest.History {
	t := &translator{tokens: tokens, stored: index(tables)}
	for _, i := range items {
		t.item(i)
	}
	return t.history
}

// add adds a call to the history. An outcome is of an answer only. A refusal that says that
// nothing was done is taken at its word where the call is one that the service does not
// repeat by itself; else it speaks of the last try only.
func (t *translator) add(i item, job store.JobID, request model.Call, outcome model.Outcome) {
	c := storetest.Call{Client: i.client, Start: i.start, End: i.ended(), Job: job, Request: request, Unknown: i.unknown()}
	repeated := true
	switch req := i.request.(type) {
	case *pb.EnqueueRequest:
		repeated = req.IdempotencyKey != nil
	case *pb.AcquireLeaseRequest:
		repeated, c.RequestID = req.RequestId != nil, req.GetRequestId()
	}
	switch {
	case c.Unknown:
	case i.refusal.nothingDone() && !repeated:
		return
	case i.refusal.nothingDone():
		c.Unknown = true
	case i.refusal != nil:
		// An error through gRPC has not all the facts of one of a Store.
		c.Outcome.Err, c.Bare = i.refusal.typed(), true
	default:
		c.Outcome = outcome
	}
	t.history = append(t.history, c)
}

func (t *translator) item(i item) {
	switch req := i.request.(type) {
	case *pb.AcquireLeaseRequest:
		t.acquire(i, req)
	case *pb.HeartbeatRequest:
		ok, _ := i.answer.(*pb.HeartbeatResponse)
		ref := t.lease(req.GetLeaseToken())
		t.add(i, ref.JobID, model.Heartbeat{
			LeaseNo: ref.LeaseNo, Stage: req.Stage, Progress: req.Progress, Checkpoint: req.Checkpoint,
		}, model.Outcome{
			LeaseNo: ref.LeaseNo, Until: ok.GetLeaseUntil().AsTime(), Remaining: ok.GetRemaining().AsDuration(), CancelRequested: ok.GetCancelRequested(),
		})
	case *pb.CompleteRequest:
		ok, _ := i.answer.(*pb.CompleteResponse)
		ref := t.lease(req.GetLeaseToken())
		t.add(i, ref.JobID, model.Complete{
			LeaseNo: ref.LeaseNo, Result: payloadIn(req.GetResult()), ThenEnqueue: newJobs(req.GetThenEnqueue()), FollowUps: remote.JobIDs(ok.GetThenEnqueueJobIds()),
		}, model.Outcome{AlreadyApplied: ok.GetAlreadyApplied(), Late: ok.GetLate(), FollowUps: remote.JobIDs(ok.GetThenEnqueueJobIds())})
	case *pb.FailRequest:
		ok, _ := i.answer.(*pb.FailResponse)
		ref := t.lease(req.GetLeaseToken())
		e := req.GetError()
		t.add(i, ref.JobID, model.Fail{
			LeaseNo: ref.LeaseNo, Error: store.CleanJobError(store.JobError{Code: e.GetCode(), Message: e.GetMessage(), Details: e.GetDetails()}),
			Permanent: req.GetPermanent(), RetryAfter: remote.Duration(req.GetRetryAfter()), FollowUps: remote.JobIDs(ok.GetThenEnqueueJobIds()),
		}, endOutcome(ok, ok.GetAttemptsLeft(), remote.JobIDs(ok.GetThenEnqueueJobIds())))
	case *pb.ReleaseRequest:
		ok, _ := i.answer.(*pb.ReleaseResponse)
		ref := t.lease(req.GetLeaseToken())
		t.add(i, ref.JobID, model.Release{LeaseNo: ref.LeaseNo, Delay: req.GetDelay().AsDuration()}, endOutcome(ok, 0, nil))
	case *pb.EnqueueRequest:
		t.enqueue(i, req)
	case *pb.CancelJobRequest:
		ok, _ := i.answer.(*pb.CancelJobResponse)
		t.add(i, idIn(req.GetJobId()), model.Cancel{}, model.Outcome{
			Requested: ok.GetOutcome() == pb.CancelOutcome_CANCEL_OUTCOME_REQUESTED, State: store.State(ok.GetState()),
		})
	case *pb.RetryJobsRequest:
		t.retry(i, req)
	case *pb.ResolveJobRequest:
		ok, _ := i.answer.(*pb.ResolveJobResponse)
		resolve := model.Resolve{}
		if req.GetCompleted() != nil {
			resolve.Result = to(payloadIn(req.GetCompleted().GetResult()))
		}
		t.add(i, idIn(req.GetJobId()), resolve, model.Outcome{State: store.State(ok.GetJob().GetState())})
	}
}

// acquire is one call for each lease.
func (t *translator) acquire(i item, req *pb.AcquireLeaseRequest) {
	request := model.Acquire{Owner: req.GetLeaseOwner(), Duration: remote.Duration(req.GetLeaseDuration()), ByID: req.JobId != nil}
	ok, _ := i.answer.(*pb.AcquireLeaseResponse)
	for _, l := range ok.GetLeases() {
		t.add(i, idIn(l.GetJob().GetJobId()), request, model.Outcome{
			LeaseNo: l.GetLeaseNo(), Attempt: l.GetAttempt(), Until: l.GetLeaseUntil().AsTime(), Remaining: l.GetRemaining().AsDuration(),
			LastStage: l.LastStage, Checkpoint: l.LastCheckpoint, State: store.Processing,
		})
	}
	if len(ok.GetLeases()) == 0 && req.JobId != nil {
		t.add(i, idIn(req.GetJobId()), request, model.Outcome{Empty: store.EmptyReason(ok.GetEmptyReason())})
	}
}

// enqueue is a call on the job that it made, or may have made where nobody knows.
func (t *translator) enqueue(i item, req *pb.EnqueueRequest) {
	ok, _ := i.answer.(*pb.EnqueueResponse)
	id := idIn(ok.GetJobId())
	if ok == nil {
		id = t.stored.by(req)
	}
	t.add(i, id, model.Enqueue{ID: id, Job: newJob(req)}, model.Outcome{Passed: !ok.GetCreated(), State: store.Pending})
}

func (t *translator) retry(i item, req *pb.RetryJobsRequest) {
	ok, _ := i.answer.(*pb.RetryJobsResponse)
	if ok == nil {
		for _, id := range req.GetSelection().GetJobIds() {
			t.add(i, idIn(id), model.Retry{}, model.Outcome{})
		}
	}
	for _, r := range ok.GetResults() {
		if r.GetError() != nil {
			i.refusal = itemRefusal(r.GetError())
		} else {
			i.refusal = nil
		}
		t.add(i, idIn(r.GetJobId()), model.Retry{}, model.Outcome{State: store.State(r.GetState())})
	}
}

// lease is whose token it is; a token that is none is of no lease, which no row fits.
func (t *translator) lease(token string) store.LeaseRef {
	ref, _ := t.tokens.Open(token)
	return ref
}

// ending is what Fail and Release answer alike.
type ending interface {
	GetState() pb.JobState
	GetNextRunAt() *timestamppb.Timestamp
	GetAlreadyApplied() bool
}

func endOutcome(e ending, attemptsLeft int32, followUps []store.JobID) model.Outcome {
	o := model.Outcome{State: store.State(e.GetState()), AttemptsLeft: attemptsLeft, AlreadyApplied: e.GetAlreadyApplied(), FollowUps: followUps}
	if at := e.GetNextRunAt(); at != nil {
		o.RunAt = model.At(at.AsTime())
	}
	return o
}

// idIn reads the id of a request, which may have none.
func idIn(id string) store.JobID {
	if id == "" {
		return 0
	}
	return remote.JobID(id)
}

func payloadIn(p *pb.Payload) store.Payload {
	if c, ok := p.GetContent().(*pb.Payload_Json); ok {
		return store.Payload{Data: []byte(c.Json), JSON: true, ContentType: p.GetContentType()}
	}
	return store.Payload{Data: p.GetData(), ContentType: p.GetContentType()}
}

func newJob(req *pb.EnqueueRequest) store.NewJob {
	return store.NewJob{Queue: req.GetQueue(), Payload: payloadIn(req.GetPayload()), IdempotencyKey: req.IdempotencyKey}
}

func newJobs(reqs []*pb.EnqueueRequest) (out []store.NewJob) {
	for _, r := range reqs {
		out = append(out, newJob(r))
	}
	return out
}
