package client_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/leasehold/leasehold/client"
	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// TestPairedClock: it goes with the monotonic clock, unless the wall clock has gone on much further.
func TestPairedClock(t *testing.T) {
	t.Parallel()
	var mono, wall time.Duration
	now := client.PairedClock(func() time.Duration { return mono }, func() time.Duration { return wall })
	for _, step := range []struct {
		name       string
		mono, wall time.Duration
		want       time.Duration
	}{
		{"both go on", time.Second, time.Second, time.Second},
		{"the wall clock is steered", time.Second, 1100 * time.Millisecond, time.Second},
		{"the machine slept", time.Second, time.Hour, time.Hour},
		{"the wall clock is set back", time.Second, -time.Hour, time.Second},
		{"nothing", 0, 0, 0},
	} {
		before := now()
		mono, wall = mono+step.mono, wall+step.wall
		if got := now() - before; got != step.want {
			t.Errorf("%s: %v, want %v", step.name, got, step.want)
		}
	}
}

func TestSystemClockGoesOn(t *testing.T) {
	t.Parallel()
	now := client.SystemClock()
	first := now()
	eventually(t, "time passes", func() bool { return now() > first })
}

// TestReplicaThatFailedIsPassedOver for a while, and then tried again.
func TestReplicaThatFailedIsPassedOver(t *testing.T) {
	t.Parallel()
	first, second := newStub(), newStub()
	broken := status.Error(codes.Unavailable, "connection reset")
	first.acquire = func(context.Context, *pb.AcquireLeaseRequest) (*pb.AcquireLeaseResponse, error) { return nil, broken }
	second.acquire = first.acquire
	s := client.Over(first, second)
	ways := client.PollWays(s)
	if got := ways.Pick(); got != 0 {
		t.Errorf("began with %d", got)
	}
	w, err := client.NewWorker(s, client.WorkerConfig{Queues: []string{"q"}, Handler: nop})
	if err != nil {
		t.Fatal(err)
	}
	run(t, w)
	awaitCalls[*pb.AcquireLeaseRequest](t, first, 1)
	awaitCalls[*pb.AcquireLeaseRequest](t, second, 1)
	// Both have failed. Polls go on, by turns.
	awaitCalls[*pb.AcquireLeaseRequest](t, first, 2)
	awaitCalls[*pb.AcquireLeaseRequest](t, second, 2)
	w.Hurry()
	ways.Forgive()
	if got := ways.Pick(); got != 0 {
		t.Errorf("came back to %d", got)
	}
}

func TestConnectFaults(t *testing.T) {
	t.Parallel()
	if _, err := client.Connect(nil, client.ConnectConfig{}); err == nil {
		t.Error("no endpoint")
	}
	if _, err := client.Connect([]string{"127.0.0.1:1", "bad\x00address://"}, client.ConnectConfig{}); err == nil {
		t.Error("an endpoint that cannot be read")
	}
}

// TestValidateJoinsAllFaults, each naming its field.
func TestValidateJoinsAllFaults(t *testing.T) {
	t.Parallel()
	if err := (client.WorkerConfig{Queues: []string{"a", "b.c-d_1"}, Handler: nop, LeaseDuration: time.Second, Wait: time.Minute, Concurrency: 10_000}).Validate(); err != nil {
		t.Error(err)
	}
	err := client.WorkerConfig{
		Queues: []string{"A", "x", "x", strings.Repeat("y", 129)}, Concurrency: -1, Owner: "a\x00", LeaseDuration: time.Millisecond, Wait: time.Hour, Grace: -1,
	}.Validate()
	for _, field := range []string{`"A"`, `"x" is there twice`, "yyy", "Handler", "Concurrency", "Owner", "LeaseDuration", "Wait", "Grace"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s is not named in: %v", field, err)
		}
	}
	if _, err := client.NewWorker(client.Over(newStub()), client.WorkerConfig{}); err == nil {
		t.Error("NewWorker took an empty config")
	}
	if _, err := client.NewProducer(client.Over(newStub()), client.ProducerConfig{Patience: -1}); err == nil {
		t.Error("NewProducer took a negative patience")
	}
}

// TestErrorsAreRead with all their facts.
func TestErrorsAreRead(t *testing.T) {
	t.Parallel()
	if got := client.ReasonOf(refusal(codes.Unavailable, pb.ErrorReason_ERROR_REASON_DRAINING, time.Second)); got != pb.ErrorReason_ERROR_REASON_DRAINING {
		t.Errorf("reason %v", got)
	}
	for _, err := range []error{nil, errors.New("x"), context.Canceled, status.Error(codes.Unavailable, "x")} {
		if got := client.ReasonOf(err); got != pb.ErrorReason_ERROR_REASON_UNSPECIFIED {
			t.Errorf("reason of %v: %v", err, got)
		}
	}
}

// job1 is what a stub leases: one job with that payload and those headers.
func job1(p *pb.Payload, headers map[string]string) *stub {
	s := newStub()
	answer := granted(1, time.Minute, time.Minute)
	answer.Leases[0].Job.Payload, answer.Leases[0].Job.Headers = p, headers
	s.acquire = answers(answer)
	return s
}

// TestTypedHandlers: what they take and give, and that what they cannot read is given up at once.
func TestTypedHandlers(t *testing.T) {
	t.Parallel()
	inJSON := func(text string) *pb.Payload { return &pb.Payload{Content: &pb.Payload_Json{Json: text}} }
	inBytes := func(b []byte) *pb.Payload { return &pb.Payload{Content: &pb.Payload_Data{Data: b}} }
	binary, err := client.ProtoPayload(durationpb.New(3 * time.Second))
	if err != nil {
		t.Fatal(err)
	}
	double := client.JSONResult(func(_ context.Context, _ *client.Job, in counted) (counted, error) { return counted{2 * in.N}, nil })
	longer := client.ProtoResult(func(_ context.Context, _ *client.Job, in *durationpb.Duration) (*durationpb.Duration, error) {
		return durationpb.New(2 * in.AsDuration()), nil
	})
	for name, c := range map[string]struct {
		handler client.Handler
		payload *pb.Payload
		want    string // the result, or the code of the error
	}{
		"JSON":                {double, inJSON(`{"n":21,"new":1}`), `{"n":42}`},
		"JSON in bytes":       {double, inBytes([]byte(`{"n":1}`)), `{"n":2}`},
		"not JSON":            {double, inBytes([]byte("\x00")), "bad_payload"},
		"no payload":          {double, nil, "bad_payload"},
		"protobuf":            {longer, inBytes(binary.Data), "\b\x06"},
		"protobuf in JSON":    {longer, inJSON(`"4s"`), "\b\b"},
		"empty message":       {longer, nil, ""},
		"not protobuf":        {longer, inBytes([]byte("\xff")), "bad_payload"},
		"not protobuf's JSON": {longer, inJSON(`{}`), "bad_payload"},
		"a result of no JSON": {client.JSONResult(func(context.Context, *client.Job, any) (float64, error) { return math.NaN(), nil }), inJSON(`1`), "bad_result"},
		"a result of bad UTF-8": {client.ProtoResult(func(context.Context, *client.Job, *structpb.Value) (*structpb.Value, error) {
			return &structpb.Value{Kind: &structpb.Value_StringValue{StringValue: "\xff"}}, nil
		}), nil, "bad_result"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := job1(c.payload, nil)
			w := over(t, s, client.WorkerConfig{Handler: c.handler})
			eventually(t, "the job ends", func() bool { return endOf(s) != "" })
			if err := w.stop(); err != nil {
				t.Error(err)
			}
			got := ""
			for _, req := range seen[*pb.BatchCompleteRequest](s) {
				r := req.GetItems()[0].GetResult()
				got = r.GetJson() + string(r.GetData())
			}
			for _, req := range seen[*pb.BatchFailRequest](s) {
				got = req.GetItems()[0].GetError().GetCode()
				if permanent := req.GetItems()[0].GetPermanent(); permanent != (got == "bad_payload") {
					t.Errorf("permanent %v", permanent)
				}
			}
			if got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// TestByQueue hands jobs out by their queue, and gives back those of others.
func TestByQueue(t *testing.T) {
	t.Parallel()
	for queue, want := range map[string]string{"q": "complete", "p": "release after 1m0s"} {
		s := job1(nil, nil)
		w := over(t, s, client.WorkerConfig{Handler: client.ByQueue(map[string]client.Handler{queue: nop})})
		eventually(t, "the job ends", func() bool { return endOf(s) != "" })
		if got := endOf(s); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		if err := w.stop(); err != nil {
			t.Error(err)
		}
	}
}

// TestBoundsOfNotes are checked where they are made: the service's refusal would come too late.
func TestBoundsOfNotes(t *testing.T) {
	t.Parallel()
	s := job1(nil, nil)
	over(t, s, client.WorkerConfig{Handler: func(ctx context.Context, job *client.Job) error {
		for _, err := range []error{
			job.Stage(ctx, strings.Repeat("s", 129)), job.Stage(ctx, "a\x00"), job.Stage(ctx, "\xff"), job.Checkpoint(ctx, make([]byte, 64<<10+1)),
		} {
			var invalid *client.InvalidError
			if !errors.As(err, &invalid) {
				t.Errorf("error %v", err)
			}
		}
		job.Progress(math.NaN())
		job.Progress(7)
		return errors.Join(job.Stage(ctx, strings.Repeat("s", 128)), job.Checkpoint(ctx, nil))
	}})
	eventually(t, "the job ends", func() bool { return endOf(s) == "complete" })
	beats := seen[*pb.BatchHeartbeatRequest](s)
	first, last := beats[0].GetItems()[0], beats[len(beats)-1].GetItems()[0]
	if first.GetProgress() != 1 || last.Checkpoint == nil || len(last.Checkpoint) != 0 {
		t.Errorf("first %v, last %v", first, last)
	}
}

// TestCallsAfterTheHandler has returned are refused, and change nothing.
func TestCallsAfterTheHandler(t *testing.T) {
	t.Parallel()
	s := job1(nil, nil)
	kept := make(chan *client.Job, 1)
	over(t, s, client.WorkerConfig{Handler: func(_ context.Context, job *client.Job) error { kept <- job; return nil }})
	job := await(t, "the job", kept)
	awaitCalls[*pb.BatchCompleteRequest](t, s, 1)
	var over *client.JobOverError
	if err := job.Stage(t.Context(), "too late"); !errors.As(err, &over) {
		t.Errorf("error %v", err)
	}
	job.Progress(1)
}

// TestMetrics have bounded labels, are shared by workers of one registry, and count what happened.
func TestMetrics(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	for range 2 {
		s := job1(nil, nil)
		w := over(t, s, client.WorkerConfig{Handler: nop, Registry: registry})
		eventually(t, "the job ends", func() bool { return endOf(s) != "" })
		if err := w.stop(); err != nil {
			t.Error(err)
		}
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetName() + "=" + l.GetValue()
			}
			got[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	for name, want := range map[string]float64{
		"leasehold_worker_leases_total queue=q":                 2,
		"leasehold_worker_leases_total queue=other":             0,
		"leasehold_worker_ends_total outcome=completed queue=q": 2,
		"leasehold_worker_ends_total outcome=failed queue=q":    0,
		"leasehold_worker_handler_seconds queue=q":              2,
		"leasehold_worker_leases":                               0,
		"leasehold_worker_slots":                                0,
	} {
		if n, there := got[name]; !there || n != want {
			t.Errorf("%s is %v, %v; want %v", name, n, there, want)
		}
	}
}

// TestTraceContext goes from the producer's context, by the job's headers, into the handler's context
// and on into follow-up jobs.
func TestTraceContext(t *testing.T) {
	t.Parallel()
	id, err := trace.TraceIDFromHex("0af7651916cd43dd8448eb211c80319c")
	if err != nil {
		t.Fatal(err)
	}
	span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: trace.SpanID{1}, TraceFlags: trace.FlagsSampled})
	mine := map[string]string{"tenant": "a"}
	s := newStub()
	enqueueAnswers(s, func(int, *pb.EnqueueRequest) (*pb.ItemError, error) { return nil, nil })
	if _, err := producer(t, client.Over(s)).Enqueue(trace.ContextWithSpanContext(t.Context(), span), client.NewJob{Queue: "q", Headers: mine}); err != nil {
		t.Fatal(err)
	}
	headers := seen[*pb.BatchEnqueueRequest](s)[0].GetItems()[0].GetHeaders()
	if headers["traceparent"] != "00-0af7651916cd43dd8448eb211c80319c-0100000000000000-01" || headers["tenant"] != "a" || len(mine) != 1 {
		t.Errorf("headers %v, the caller's %v", headers, mine)
	}
	s = job1(nil, headers)
	got := make(chan trace.SpanContext, 1)
	over(t, s, client.WorkerConfig{Handler: func(ctx context.Context, job *client.Job) error {
		got <- trace.SpanContextFromContext(ctx)
		job.ThenEnqueue(client.NewJob{Queue: "next"})
		return nil
	}})
	if sc := await(t, "the handler", got); sc.TraceID() != id || !sc.IsRemote() {
		t.Errorf("the handler's span context is %v", sc)
	}
	then := awaitCalls[*pb.BatchCompleteRequest](t, s, 1)[0].GetItems()[0].GetThenEnqueue()[0]
	if then.GetHeaders()["traceparent"] != headers["traceparent"] {
		t.Errorf("the follow-up's headers are %v", then.GetHeaders())
	}
}
