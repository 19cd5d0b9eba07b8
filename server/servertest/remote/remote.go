// Package remote is the API of the service as a store.Store: the contract of a Store, random
// sequences and recorded histories then run through real gRPC. Its conversions are written
// apart from the server's own, so that a mistake there is not made here as well.
package remote

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
)

// Store is a store.Store whose methods are calls of the API: of the single methods for
// one item, of the batch methods for several. What the API does not have goes to the
// database directly, and where it says less than a Store, Store bridges the gap:
//
//   - Maintenance, Undeliver and EnsureQueues: the service's own, no part of the API.
//   - Byte caps (Acquire.MaxBytes, Page.Bytes): the service chooses them. Calls with another
//     go directly; all others live with the service's.
//   - Several acquires in one call: only the service makes such calls, when it merges those
//     of several workers (R47); there is no batch method. They go directly, and the race by
//     job id is run over single calls by TestRaceOfThreeReplicas.
//   - Job.Policy has the defaults filled in: what is not set in the row, and answered as the
//     default, is taken for unset. Only GetJob is read by tests that compare it.
//   - The job in a lease has no checkpoint, which the lease itself carries.
//   - Ended of a Release has no AttemptsLeft and of none a Queue; nothing compares them.
//   - A ResolveJob without actor or note is refused (INVALID_REQUEST): they are made up.
//   - Bad UTF-8 cannot be sent; gRPC itself refuses it. It is replaced, as Fail would.
//   - Errors do not repeat keys and request ids: they are put back from the request.
//   - What the service does not begin for reasons of its own (DRAINING, OVERLOADED) is an
//     UnavailableError, as all of which nothing was done.
//   - A call whose connection broke is an OutcomeUnknownError, whatever it asked for.
type Store struct {
	store.Maintenance
	store.Inspector             // that of the database itself
	Direct          store.Store // the database itself

	// Wait is the long poll of every Acquire; 0: none.
	Wait time.Duration
	// Drains tells that the replica may be draining, which heartbeats then say.
	Drains bool

	leases pb.LeaseServiceClient
	jobs   pb.JobServiceClient
	queues pb.QueueServiceClient
	tokens *store.Tokens // for leases that this client has not been given

	mu    sync.Mutex
	given map[store.LeaseRef]string // the tokens of those that it has
	pages map[int64]string          // page tokens by what stands for them in store.Page
	names map[string]string         // those of ListQueues by the last name of the page before
}

var _ store.Store = (*Store)(nil)

// New makes a client of the replica at the end of conn, beside direct, a Store over the
// database of that replica.
func New(ctx context.Context, conn grpc.ClientConnInterface, direct store.Store) (*Store, error) {
	key, err := direct.TokenKey(ctx)
	if err != nil {
		return nil, err
	}
	return &Store{
		Maintenance: direct, Inspector: direct, Direct: direct, tokens: store.NewTokens(key),
		leases: pb.NewLeaseServiceClient(conn), jobs: pb.NewJobServiceClient(conn), queues: pb.NewQueueServiceClient(conn),
		given: map[store.LeaseRef]string{}, pages: map[int64]string{}, names: map[string]string{},
	}, nil
}

// token is the handle of a lease.
func (r *Store) token(ref store.LeaseRef) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if token, ok := r.given[ref]; ok {
		return token
	}
	return r.tokens.Seal(ref)
}

func (r *Store) remember(leases []*pb.Lease, refs []store.Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range refs {
		r.given[refs[i].Ref()] = leases[i].GetLeaseToken()
	}
}

// result is what a batch answers for one item.
type result[Ok any] interface {
	GetOk() Ok
	GetError() *pb.ItemError
}

// method is a method of the API in its two forms.
type method[Item, Result any, Req, Ok proto.Message, R result[Ok]] struct {
	in    func(Item) Req
	one   func(context.Context, Req, ...grpc.CallOption) (Ok, error)
	batch func(context.Context, []Req) ([]R, error)
	out   func(Ok, error) Result
}

func (m method[Item, Result, Req, Ok, R]) call(ctx context.Context, items []Item) ([]Result, error) {
	if len(items) == 1 {
		ok, err := m.one(ctx, m.in(items[0]))
		if err = storeError(err); isOfCall(err) {
			return nil, err
		}
		return []Result{m.out(ok, err)}, nil
	}
	reqs := make([]Req, len(items))
	for i, item := range items {
		reqs[i] = m.in(item)
	}
	answers, err := m.batch(ctx, reqs)
	if err != nil {
		return nil, storeError(err)
	}
	if len(answers) != len(items) {
		return nil, fmt.Errorf("%d results for %d items", len(answers), len(items))
	}
	results := make([]Result, len(items))
	for i, a := range answers {
		results[i] = m.out(a.GetOk(), itemError(a.GetError()))
	}
	return results, nil
}

// Acquire is store.Store.Acquire.
func (r *Store) Acquire(ctx context.Context, items []store.Acquire) ([]store.Acquired, error) {
	if len(items) != 1 || items[0].MaxBytes != 0 {
		return r.Direct.Acquire(ctx, items)
	}
	got, err := r.acquire(ctx, items[0])
	if err != nil {
		return nil, err
	}
	return []store.Acquired{got}, nil
}

func (r *Store) acquire(ctx context.Context, a store.Acquire) (store.Acquired, error) {
	resp, err := r.leases.AcquireLease(ctx, r.acquireOut(a))
	if err = storeError(err); isOfCall(err) {
		return store.Acquired{}, err
	}
	if e, ok := errors.AsType[*store.RequestReusedError](err); ok {
		e.RequestID = *a.RequestID
	}
	if err != nil {
		return store.Acquired{Err: err}, nil
	}
	out := store.Acquired{Empty: store.EmptyReason(resp.GetEmptyReason())}
	for _, l := range resp.GetLeases() {
		if err := whatOnlyTheAPISays(l); err != nil {
			return store.Acquired{}, err
		}
		out.Leases = append(out.Leases, leaseIn(l))
	}
	r.remember(resp.GetLeases(), out.Leases)
	return out, nil
}

// whatOnlyTheAPISays checks what a lease has beside that of a Store (R13).
func whatOnlyTheAPISays(l *pb.Lease) error {
	advised, remaining := l.GetNextHeartbeatIn().AsDuration(), l.GetRemaining().AsDuration()
	if l.GetLeaseToken() == "" || advised != remaining/3 || l.GetMaxAttempts() != l.GetJob().GetPolicy().GetMaxAttempts() || l.GetMaxAttempts() == 0 {
		return fmt.Errorf("token %q, next heartbeat in %s of %s, %d attempts", l.GetLeaseToken(), advised, remaining, l.GetMaxAttempts())
	}
	return nil
}

// Undeliver is store.Store.Undeliver.
func (r *Store) Undeliver(ctx context.Context, leases []store.LeaseRef, requestID *string) error {
	return r.Direct.Undeliver(ctx, leases, requestID)
}

// Heartbeat is store.Store.Heartbeat.
func (r *Store) Heartbeat(ctx context.Context, items []store.Heartbeat) ([]store.Beaten, error) {
	return method[store.Heartbeat, store.Beaten, *pb.HeartbeatRequest, *pb.HeartbeatResponse, *pb.BatchHeartbeatResult]{
		in: r.heartbeatOut, one: r.leases.Heartbeat, out: r.beatenIn,
		batch: func(ctx context.Context, reqs []*pb.HeartbeatRequest) ([]*pb.BatchHeartbeatResult, error) {
			resp, err := r.leases.BatchHeartbeat(ctx, &pb.BatchHeartbeatRequest{Items: reqs})
			return resp.GetResults(), err
		},
	}.call(ctx, items)
}

// Complete is store.Store.Complete.
func (r *Store) Complete(ctx context.Context, items []store.Complete) ([]store.Completion, error) {
	return method[store.Complete, store.Completion, *pb.CompleteRequest, *pb.CompleteResponse, *pb.BatchCompleteResult]{
		in: r.completeOut, one: r.leases.Complete, out: completionIn,
		batch: func(ctx context.Context, reqs []*pb.CompleteRequest) ([]*pb.BatchCompleteResult, error) {
			resp, err := r.leases.BatchComplete(ctx, &pb.BatchCompleteRequest{Items: reqs})
			return resp.GetResults(), err
		},
	}.call(ctx, items)
}

// Fail is store.Store.Fail.
func (r *Store) Fail(ctx context.Context, items []store.Fail) ([]store.Ended, error) {
	return method[store.Fail, store.Ended, *pb.FailRequest, *pb.FailResponse, *pb.BatchFailResult]{
		in: r.failOut, one: r.leases.Fail, out: failedIn,
		batch: func(ctx context.Context, reqs []*pb.FailRequest) ([]*pb.BatchFailResult, error) {
			resp, err := r.leases.BatchFail(ctx, &pb.BatchFailRequest{Items: reqs})
			return resp.GetResults(), err
		},
	}.call(ctx, items)
}

// Release is store.Store.Release.
func (r *Store) Release(ctx context.Context, items []store.Release) ([]store.Ended, error) {
	return method[store.Release, store.Ended, *pb.ReleaseRequest, *pb.ReleaseResponse, *pb.BatchReleaseResult]{
		in: r.releaseOut, one: r.leases.Release, out: releasedIn,
		batch: func(ctx context.Context, reqs []*pb.ReleaseRequest) ([]*pb.BatchReleaseResult, error) {
			resp, err := r.leases.BatchRelease(ctx, &pb.BatchReleaseRequest{Items: reqs})
			return resp.GetResults(), err
		},
	}.call(ctx, items)
}

// ListStuck is store.Store.ListStuck.
func (r *Store) ListStuck(ctx context.Context, f store.StuckFilter, p store.Page) (store.StuckPage, error) {
	req := &pb.ListStuckRequest{Queue: f.Queue, PageSize: to(int32(p.Size))}
	for _, d := range f.Diagnoses {
		req.Diagnoses = append(req.Diagnoses, pb.Diagnosis(d))
	}
	var err error
	if req.PageToken, err = r.pageToken(p.After); err != nil {
		return store.StuckPage{}, err
	}
	resp, err := r.leases.ListStuck(ctx, req)
	if err != nil {
		return store.StuckPage{}, storeError(err)
	}
	out := store.StuckPage{Next: r.position(resp.GetNextPageToken())}
	for _, j := range resp.GetJobs() {
		if j.GetRemedy() == pb.Remedy_REMEDY_UNSPECIFIED || j.GetRemedyText() == "" {
			return store.StuckPage{}, fmt.Errorf("no remedy for %s of job %s", j.GetDiagnosis(), j.GetJobId())
		}
		out.Jobs = append(out.Jobs, stuckIn(j))
	}
	return out, nil
}

// position is what stands for a page token in store.Page: positions are opaque to those who
// page, as the tokens are.
func (r *Store) position(token string) int64 {
	if token == "" {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	n := int64(len(r.pages) + 1)
	r.pages[n] = token
	return n
}

func (r *Store) pageToken(after int64) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	token, ok := r.pages[after]
	if !ok && after != 0 {
		return "", fmt.Errorf("no page ended at %d", after)
	}
	return token, nil
}
