package server

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
)

// untouched is a store that must not be reached: every call but TokenKey panics.
type untouched struct{ store.Store }

func (untouched) TokenKey(context.Context) ([]byte, error) { return make([]byte, 32), nil }

// badRequest is a request with one fault. The error names field and, in text, the bound.
type badRequest struct {
	name   string
	req    proto.Message
	field  string
	text   string
	reason string // INVALID_REQUEST where empty
}

// requests builds good requests, each changed by one mutation.
func enq(change func(*pb.EnqueueRequest)) *pb.EnqueueRequest {
	r := &pb.EnqueueRequest{Queue: "payments"}
	change(r)
	return r
}

func acq(change func(*pb.AcquireLeaseRequest)) *pb.AcquireLeaseRequest {
	r := &pb.AcquireLeaseRequest{Queues: []string{"payments"}, LeaseOwner: "w/1"}
	change(r)
	return r
}

func beat(change func(*pb.HeartbeatRequest)) *pb.HeartbeatRequest {
	r := &pb.HeartbeatRequest{LeaseToken: testToken}
	change(r)
	return r
}

// testToken is one that untouched's key opens.
var testToken = store.NewTokens(make([]byte, 32)).Seal(store.LeaseRef{JobID: 1, LeaseNo: 1})

// durationFaults are what is wrong with a duration of low to high, whatever its field.
func durationFaults(name string, low, high time.Duration, text string, with func(*durationpb.Duration) (proto.Message, string)) []badRequest {
	values := map[string]*durationpb.Duration{
		"-1 s":             {Seconds: -1},
		"-1 ns":            {Nanos: -1},
		"above":            durationpb.New(high + time.Nanosecond),
		"longest":          {Seconds: 315_576_000_000},
		"largest int64 ns": durationpb.New(math.MaxInt64),
		"opposite signs":   {Seconds: 1, Nanos: -1},
		"beyond longest":   {Seconds: 315_576_000_001},
		"largest seconds":  {Seconds: math.MaxInt64},
		"nanos of 1 s":     {Seconds: 1, Nanos: 1_000_000_000},
	}
	if low > 0 {
		values["zero"] = &durationpb.Duration{}
		values["1 ns"] = &durationpb.Duration{Nanos: 1}
		values["999 µs"] = &durationpb.Duration{Nanos: 999_000}
	}
	var out []badRequest
	for what, d := range values {
		req, field := with(d)
		want := text
		if d.CheckValid() != nil {
			want = "must be a valid duration"
		}
		out = append(out, badRequest{name: name + " " + what, req: req, field: field, text: want})
	}
	return out
}

func policyFaults() []badRequest {
	in := func(field string, p *pb.JobPolicy) (proto.Message, string) {
		return &pb.CreateQueueRequest{Queue: &pb.Queue{Name: "q", Policy: p}}, "queue.policy." + field
	}
	type durationField struct {
		name      string
		low, high time.Duration
		text      string
		set       func(*durationpb.Duration) *pb.JobPolicy
	}
	const day = 24 * time.Hour
	var out []badRequest
	for _, f := range []durationField{
		{"lease_duration", time.Second, 12 * time.Hour, "must be between 1 s and 12 h, got ", func(d *durationpb.Duration) *pb.JobPolicy { return &pb.JobPolicy{LeaseDuration: d} }},
		{"max_runtime", time.Second, 30 * day, "must be between 1 s and 30 days, got ", func(d *durationpb.Duration) *pb.JobPolicy { return &pb.JobPolicy{MaxRuntime: d} }},
		{"stall_timeout", time.Second, 30 * day, "must be between 1 s and 30 days, got ", func(d *durationpb.Duration) *pb.JobPolicy { return &pb.JobPolicy{StallTimeout: d} }},
		{"cancel_grace", 0, day, "must be between 0 s and 1 day, got ", func(d *durationpb.Duration) *pb.JobPolicy { return &pb.JobPolicy{CancelGrace: d} }},
		{"idempotency_retention", 0, 366 * day, "must be between 0 s and 366 days, got ", func(d *durationpb.Duration) *pb.JobPolicy { return &pb.JobPolicy{IdempotencyRetention: d} }},
		{"backoff.initial", 0, day, "must be between 0 s and 1 day, got ", func(d *durationpb.Duration) *pb.JobPolicy { return &pb.JobPolicy{Backoff: &pb.Backoff{Initial: d}} }},
		{"backoff.cap", 0, 30 * day, "must be between 0 s and 30 days, got ", func(d *durationpb.Duration) *pb.JobPolicy { return &pb.JobPolicy{Backoff: &pb.Backoff{Cap: d}} }},
	} {
		out = append(out, durationFaults(f.name, f.low, f.high, f.text, func(d *durationpb.Duration) (proto.Message, string) {
			return in(f.name, f.set(d))
		})...)
	}
	for _, n := range []int32{0, -1, 1001, math.MaxInt32, math.MinInt32} {
		req, field := in("max_attempts", &pb.JobPolicy{MaxAttempts: proto.Int32(n)})
		out = append(out, badRequest{name: fmt.Sprint("max_attempts ", n), req: req, field: field, text: fmt.Sprint("must be between 1 and 1000, got ", n)})
		req, field = in("max_expirations", &pb.JobPolicy{MaxExpirations: proto.Int32(n)})
		out = append(out, badRequest{name: fmt.Sprint("max_expirations ", n), req: req, field: field, text: fmt.Sprint("must be between 1 and 1000, got ", n)})
	}
	for _, x := range []float64{-1, 0.999, 10.001, math.NaN(), math.Inf(1), math.Inf(-1)} {
		req, field := in("backoff.factor", &pb.JobPolicy{Backoff: &pb.Backoff{Factor: &x}})
		out = append(out, badRequest{name: fmt.Sprint("factor ", x), req: req, field: field, text: "must be between 1 and 10, got " + formatFloat(x)})
	}
	for _, x := range []float64{-0.001, 1.001, math.NaN(), math.Inf(1)} {
		req, field := in("backoff.jitter", &pb.JobPolicy{Backoff: &pb.Backoff{Jitter: &x}})
		out = append(out, badRequest{name: fmt.Sprint("jitter ", x), req: req, field: field, text: "must be between 0 and 1, got " + formatFloat(x)})
	}
	return out
}

func enqueueFaults() []badRequest {
	const fiveYears = 1827 * 24 * time.Hour
	out := durationFaults("delay", 0, fiveYears, "must be between 0 s and 1827 days, got ", func(d *durationpb.Duration) (proto.Message, string) {
		return enq(func(r *pb.EnqueueRequest) { r.Delay = d }), "delay"
	})
	for _, name := range []string{"", "A", "a b", "-a", "a\x00", "ä", strings.Repeat("a", 129), "a\n"} {
		out = append(out, badRequest{name: fmt.Sprintf("queue %.10q", name), field: "queue", text: "must be a queue name",
			req: enq(func(r *pb.EnqueueRequest) { r.Queue = name })})
	}
	for _, n := range []int32{0, -1, 10, math.MaxInt32} {
		out = append(out, badRequest{name: fmt.Sprint("priority ", n), field: "priority", text: fmt.Sprint("must be between 1 and 9, got ", n),
			req: enq(func(r *pb.EnqueueRequest) { r.Priority = &n })})
	}
	for what, set := range map[string]func(*pb.EnqueueRequest, *string){
		"subject":         func(r *pb.EnqueueRequest, s *string) { r.Subject = s },
		"idempotency_key": func(r *pb.EnqueueRequest, s *string) { r.IdempotencyKey = s },
	} {
		for value, text := range map[string]string{
			"": "must have 1 to 256 bytes, got 0", strings.Repeat("ä", 129): "must have 1 to 256 bytes, got 258", "a\x00b": "must not contain NUL",
		} {
			out = append(out, badRequest{name: fmt.Sprintf("%s %.5q", what, value), field: what, text: text,
				req: enq(func(r *pb.EnqueueRequest) { set(r, &value) })})
		}
	}
	for what, ts := range map[string]*timestamppb.Timestamp{
		"year 10000": {Seconds: 253_402_300_800}, "year 0": {Seconds: -62_135_596_801}, "negative nanos": {Nanos: -1},
		"nanos of 1 s": {Nanos: 1_000_000_000}, "largest": {Seconds: math.MaxInt64},
	} {
		out = append(out, badRequest{name: "run_at " + what, field: "run_at", text: "must be a valid timestamp",
			req: enq(func(r *pb.EnqueueRequest) { r.RunAt = ts })})
	}
	return append(out,
		badRequest{name: "run_at in 6 years", field: "run_at", text: "at most 5 years (1,827 days) ahead",
			req: enq(func(r *pb.EnqueueRequest) { r.RunAt = timestamppb.New(time.Now().AddDate(6, 0, 0)) })},
		badRequest{name: "run_at and delay", field: "delay", text: "run_at and delay must not both be set",
			req: enq(func(r *pb.EnqueueRequest) { r.RunAt, r.Delay = timestamppb.Now(), durationpb.New(0) })},
		badRequest{name: "policy of a job", field: "policy.lease_duration", text: "must be between 1 s and 12 h, got 0s",
			req: enq(func(r *pb.EnqueueRequest) { r.Policy = &pb.JobPolicy{LeaseDuration: durationpb.New(0)} })},
		badRequest{name: "content type", field: "payload.content_type", text: "must have at most 256 bytes, got 257",
			req: enq(func(r *pb.EnqueueRequest) { r.Payload = &pb.Payload{ContentType: strings.Repeat("a", 257)} })},
		badRequest{name: "content type NUL", field: "payload.content_type", text: "must not contain NUL",
			req: enq(func(r *pb.EnqueueRequest) { r.Payload = &pb.Payload{ContentType: "a\x00"} })},
		badRequest{name: "data of 2 MiB", field: "payload.data", text: "must have at most 1048576 bytes, got 2097152", reason: "TOO_LARGE",
			req: enq(func(r *pb.EnqueueRequest) { r.Payload = data(2 << 20) })},
		badRequest{name: "JSON above 1 MiB", field: "payload.json", text: "must have at most 1048576 bytes, got 1048577", reason: "TOO_LARGE",
			req: enq(func(r *pb.EnqueueRequest) { r.Payload = jsonPayload(`"` + strings.Repeat("a", 1<<20-1) + `"`) })},
		badRequest{name: "no JSON", field: "payload.json", text: "must be one JSON value", req: enq(func(r *pb.EnqueueRequest) { r.Payload = jsonPayload("") })},
		badRequest{name: "two JSON values", field: "payload.json", text: "must be one JSON value", req: enq(func(r *pb.EnqueueRequest) { r.Payload = jsonPayload("1 2") })},
		badRequest{name: "JSON with a raw NUL", field: "payload.json", text: "must be one JSON value", req: enq(func(r *pb.EnqueueRequest) { r.Payload = jsonPayload("\"\x00\"") })},
		badRequest{name: "JSON too deep", field: "payload.json", text: "10,000 levels", req: enq(func(r *pb.EnqueueRequest) { r.Payload = jsonPayload(nested(10_001)) })},
		badRequest{name: "65 headers", field: "headers", text: "must have at most 64 entries, got 65", req: enq(func(r *pb.EnqueueRequest) { r.Headers = headers(65, 1) })},
		badRequest{name: "header name", field: `headers["A"]`, text: "must have keys of [a-z0-9._-]{1,64}", req: enq(func(r *pb.EnqueueRequest) { r.Headers = map[string]string{"A": ""} })},
		badRequest{name: "header with NUL", field: `headers["a"]`, text: "must not contain NUL", req: enq(func(r *pb.EnqueueRequest) { r.Headers = map[string]string{"a": "\x00"} })},
		badRequest{name: "one large header", field: `headers["a"]`, text: "at most 16384 bytes", reason: "TOO_LARGE",
			req: enq(func(r *pb.EnqueueRequest) { r.Headers = map[string]string{"a": strings.Repeat("x", 16385)} })},
		badRequest{name: "headers in all", field: "headers", text: "must have at most 16384 bytes in all, keys and values, got 16448", reason: "TOO_LARGE",
			req: enq(func(r *pb.EnqueueRequest) { r.Headers = headers(64, 254) })},
	)
}

func data(n int) *pb.Payload { return &pb.Payload{Content: &pb.Payload_Data{Data: make([]byte, n)}} }
func jsonPayload(s string) *pb.Payload {
	return &pb.Payload{Content: &pb.Payload_Json{Json: s}}
}
func nested(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }

// headers makes n headers with names of 3 bytes.
func headers(n, valueBytes int) map[string]string {
	h := map[string]string{}
	for i := range n {
		h[fmt.Sprintf("h%02d", i)] = strings.Repeat("x", valueBytes)
	}
	return h
}

// methodsByRequest finds the method of each request in the descriptors, so that no request is left out
// for lack of a line here.
func methodsByRequest() map[string]string {
	out := map[string]string{}
	for _, file := range serviceFiles {
		for i := range file.Services().Len() {
			sd := file.Services().Get(i)
			for j := range sd.Methods().Len() {
				m := sd.Methods().Get(j)
				out[string(m.Input().FullName())] = fmt.Sprintf("/%s/%s", sd.FullName(), m.Name())
			}
		}
	}
	return out
}

// TestBadRequestsAreRefusedByField: out of range is refused with field and bound, and
// nothing reaches the store (R1, R11, section 13).
func TestBadRequestsAreRefusedByField(t *testing.T) {
	s := serve(t, untouched{}, Config{})
	methods := methodsByRequest()
	covered := map[string]bool{}
	cases := slices.Concat(enqueueFaults(), leaseFaults(), stuckAndBatchFaults(), jobFaults(), policyFaults(), lintFaults())
	for _, c := range cases {
		name := string(c.req.ProtoReflect().Descriptor().FullName())
		covered[name] = true
		t.Run(string(c.req.ProtoReflect().Descriptor().Name())+"/"+c.name, func(t *testing.T) {
			c.assert(t, s.conn.Invoke(t.Context(), methods[name], c.req, &pb.DeleteQueueResponse{}))
		})
	}
	for _, name := range slices.Sorted(maps.Keys(methods)) {
		if !covered[name] {
			t.Errorf("no case for %s", name)
		}
	}
}

func (c badRequest) assert(t *testing.T, err error) {
	t.Helper()
	st := status.Convert(err)
	d := detailsOf(st)
	want := c.reason
	if want == "" {
		want = "INVALID_REQUEST"
	}
	if st.Code() != codes.InvalidArgument || d.reason != want {
		t.Fatalf("got %v %s: %v", st.Code(), d.reason, st.Message())
	}
	at := slices.Index(d.fields, c.field)
	if at < 0 {
		t.Fatalf("fields %q, want %q", d.fields, c.field)
	}
	if !strings.Contains(d.texts[at], c.text) {
		t.Errorf("says %q, want %q", d.texts[at], c.text)
	}
	if !strings.Contains(st.Message(), d.fields[0]) {
		t.Errorf("the message does not name the field: %q", st.Message())
	}
}
