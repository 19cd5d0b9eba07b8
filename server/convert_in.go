package server

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
)

// clockSlack is how much further than allowed a run_at may lie by this replica's clock. The
// store judges by the database's clock; this bound only keeps nonsense out of its
// statements, and must not refuse what a replica with a late clock is sent.
const clockSlack = 24 * time.Hour

// intake converts requests to the domain. It collects what protovalidate cannot say: JSON,
// sums of sizes, times relative to now. Messages that reach it have passed the validator.
type intake struct {
	violations []violation
	now        func() time.Time
}

func (in *intake) refuse(field, format string, args ...any) {
	in.violations = append(in.violations, violation{field: field, description: fmt.Sprintf(format, args...)})
}

func (in *intake) refuseSize(field, format string, args ...any) {
	in.refuse(field, format, args...)
	in.violations[len(in.violations)-1].tooLarge = true
}

func (in *intake) err() error {
	if len(in.violations) == 0 {
		return nil
	}
	return &invalidRequestError{violations: in.violations}
}

// newJob converts one job. path stands before each field: "" or "then_enqueue[3].".
func (in *intake) newJob(path string, r *pb.EnqueueRequest) store.NewJob {
	if size := headersSize(r.GetHeaders()); size > store.MaxHeadersBytes {
		in.refuseSize(path+"headers", "must have at most %d bytes in all, keys and values, got %d", store.MaxHeadersBytes, size)
	}
	runAt := ceilTime(r.GetRunAt())
	if runAt != nil && runAt.Sub(in.now()) > store.MaxAhead+clockSlack {
		in.refuse(path+"run_at", "must be at most 5 years (1,827 days) ahead")
	}
	return store.NewJob{
		Queue:          r.GetQueue(),
		Payload:        in.payload(path+"payload", r.GetPayload()),
		Headers:        r.GetHeaders(),
		Subject:        r.Subject,
		Priority:       r.Priority,
		RunAt:          runAt,
		Delay:          ceilDuration(r.GetDelay()),
		IdempotencyKey: r.IdempotencyKey,
		Policy:         policyIn(r.GetPolicy()),
	}
}

func (in *intake) thenEnqueue(rs []*pb.EnqueueRequest) []store.NewJob {
	if len(rs) == 0 {
		return nil
	}
	jobs := make([]store.NewJob, len(rs))
	for i, r := range rs {
		jobs[i] = in.newJob(fmt.Sprintf("then_enqueue[%d].", i), r)
	}
	return jobs
}

func headersSize(h map[string]string) int {
	size := 0
	for k, v := range h {
		size += len(k) + len(v)
	}
	return size
}

// payload converts content. JSON is checked here and kept byte for byte: a document that
// PostgreSQL or a worker cannot parse would fail far away from the producer who can mend it.
func (in *intake) payload(field string, p *pb.Payload) store.Payload {
	out := store.Payload{ContentType: p.GetContentType()}
	switch c := p.GetContent().(type) {
	case *pb.Payload_Data:
		out.Data = c.Data
	case *pb.Payload_Json:
		out.Data, out.JSON = []byte(c.Json), true
		// The standard library's scanner refuses what is nested deeper than 10,000 levels.
		if !json.Valid(out.Data) {
			in.refuse(field+".json", "must be one JSON value, nested at most 10,000 levels deep")
		}
	}
	return out
}

func policyIn(p *pb.JobPolicy) store.Policy {
	if p == nil {
		return store.Policy{}
	}
	b := p.GetBackoff()
	if b == nil {
		b = &pb.Backoff{}
	}
	return store.Policy{
		MaxAttempts:          p.MaxAttempts,
		MaxExpirations:       p.MaxExpirations,
		BackoffInitial:       ceilDuration(b.GetInitial()),
		BackoffFactor:        b.Factor,
		BackoffCap:           ceilDuration(b.GetCap()),
		BackoffJitter:        b.Jitter,
		LeaseDuration:        ceilDuration(p.GetLeaseDuration()),
		MaxRuntime:           ceilDuration(p.GetMaxRuntime()),
		StallTimeout:         ceilDuration(p.GetStallTimeout()),
		CancelGrace:          ceilDuration(p.GetCancelGrace()),
		IdempotencyRetention: ceilDuration(p.GetIdempotencyRetention()),
	}
}

// jobID reads an id that has passed its pattern, which allows a few numbers above int64.
func (in *intake) jobID(field, id string) store.JobID {
	n, err := strconv.ParseInt(id, 10, 64)
	if err != nil {
		in.refuse(field, "must be a job id: a decimal number up to 9223372036854775807")
	}
	return store.JobID(n)
}

func filterIn(f *pb.JobFilter) store.JobFilter {
	if f == nil {
		return store.JobFilter{}
	}
	out := store.JobFilter{
		Queue:         f.Queue,
		Subject:       f.Subject,
		CreatedFrom:   ceilTime(f.GetCreatedFrom()),
		CreatedBefore: ceilTime(f.GetCreatedBefore()),
		ErrorCode:     f.ErrorCode,
	}
	for _, s := range f.GetStates() {
		out.States = append(out.States, store.State(s))
	}
	return out
}

// ceilDuration rounds up to the microsecond that PostgreSQL keeps. Rounding down would make
// 1 ns a zero, which means something else.
func ceilDuration(d *durationpb.Duration) *time.Duration {
	if d == nil {
		return nil
	}
	v := d.AsDuration()
	if rest := v % time.Microsecond; rest > 0 {
		v += time.Microsecond - rest
	}
	return &v
}

// ceilTime rounds up to the microsecond, so that nothing starts before its run_at.
func ceilTime(t *timestamppb.Timestamp) *time.Time {
	if t == nil {
		return nil
	}
	v := t.AsTime()
	if rest := v.Nanosecond() % int(time.Microsecond); rest > 0 {
		v = v.Add(time.Microsecond - time.Duration(rest))
	}
	return &v
}

func formatID(id store.JobID) string { return strconv.FormatInt(int64(id), 10) }

func formatIDs(ids []store.JobID) []string {
	if len(ids) == 0 {
		return nil
	}
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = formatID(id)
	}
	return out
}
