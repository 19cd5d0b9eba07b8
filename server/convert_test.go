package server

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
)

func TestDurationsAreRoundedUpToTheMicrosecond(t *testing.T) {
	for in, want := range map[time.Duration]time.Duration{
		0: 0, 1: time.Microsecond, 999: time.Microsecond, 1000: time.Microsecond, 1001: 2 * time.Microsecond,
		time.Second + 1: time.Second + time.Microsecond, -1: -1,
	} {
		if got := ceilDuration(durationpb.New(in)); *got != want {
			t.Errorf("%v became %v, want %v", in, *got, want)
		}
	}
	if ceilDuration(nil) != nil || ceilTime(nil) != nil {
		t.Error("unset became a value")
	}
	for in, want := range map[int64]int64{0: 0, 1: 1000, 999_999_001: 1_000_000_000, 5000: 5000} {
		if got := ceilTime(&timestamppb.Timestamp{Seconds: 7, Nanos: int32(in)}); !got.Equal(time.Unix(7, want)) {
			t.Errorf("%d ns became %v", in, got)
		}
	}
}

// TestBoundsThemselvesAreAccepted, on both ends.
func TestBoundsThemselvesAreAccepted(t *testing.T) {
	s := serve(t, newStore(t, "q"), Config{})
	const day = 24 * time.Hour
	text := strings.Repeat("ä", 128)
	low := &pb.JobPolicy{
		MaxAttempts: proto.Int32(1), MaxExpirations: proto.Int32(1), LeaseDuration: durationpb.New(time.Second), MaxRuntime: durationpb.New(time.Second),
		StallTimeout: durationpb.New(time.Second), CancelGrace: durationpb.New(0), IdempotencyRetention: durationpb.New(0),
		Backoff: &pb.Backoff{Initial: durationpb.New(0), Factor: proto.Float64(1), Cap: durationpb.New(0), Jitter: proto.Float64(0)},
	}
	high := &pb.JobPolicy{
		MaxAttempts: proto.Int32(1000), MaxExpirations: proto.Int32(1000), LeaseDuration: durationpb.New(12 * time.Hour), MaxRuntime: durationpb.New(30 * day),
		StallTimeout: durationpb.New(30 * day), CancelGrace: durationpb.New(day), IdempotencyRetention: durationpb.New(366 * day),
		Backoff: &pb.Backoff{Initial: durationpb.New(day), Factor: proto.Float64(10), Cap: durationpb.New(30 * day), Jitter: proto.Float64(1)},
	}
	for name, req := range map[string]*pb.EnqueueRequest{
		"lowest":          {Queue: "q", Priority: proto.Int32(1), Delay: durationpb.New(0), Policy: low, Subject: proto.String("s")},
		"highest":         {Queue: "q", Priority: proto.Int32(9), Delay: durationpb.New(store.MaxAhead), Policy: high, Subject: &text, IdempotencyKey: &text},
		"1 MiB of data":   {Queue: "q", Payload: data(1 << 20)},
		"1 MiB of JSON":   {Queue: "q", Payload: jsonPayload(`"` + strings.Repeat("a", 1<<20-2) + `"`)},
		"deepest JSON":    {Queue: "q", Payload: jsonPayload(nested(10_000))},
		"odd JSON":        {Queue: "q", Payload: jsonPayload(` {"a":1e400,"a":"\u0000\ud800"} `)},
		"headers":         {Queue: "q", Headers: headers(64, 253)},
		"run_at, past":    {Queue: "q", RunAt: &timestamppb.Timestamp{Seconds: -62_135_596_800}},
		"run_at, 5 years": {Queue: "q", RunAt: timestamppb.New(time.Now().Add(store.MaxAhead - time.Minute))},
	} {
		t.Run(name, func(t *testing.T) {
			id := s.enqueueOne(t, req)
			resp, err := s.jobs.GetJob(t.Context(), &pb.GetJobRequest{By: &pb.GetJobRequest_JobId{JobId: id}, View: pb.JobView_JOB_VIEW_FULL})
			if err != nil {
				t.Fatal(err)
			}
			if req.GetPayload() != nil && !proto.Equal(resp.GetJob().GetPayload(), req.GetPayload()) {
				t.Error("the payload came back changed")
			}
			if req.GetHeaders() != nil && !maps.Equal(resp.GetJob().GetHeaders(), req.GetHeaders()) {
				t.Error("the headers came back changed")
			}
			if req.GetPolicy() != nil && !proto.Equal(resp.GetJob().GetPolicy(), req.GetPolicy()) {
				t.Errorf("the policy came back as %v", resp.GetJob().GetPolicy())
			}
		})
	}
}

// TestLongestQueueName is 128 bytes.
func TestLongestQueueName(t *testing.T) {
	s := serve(t, newStore(t), Config{AutoCreateQueues: true})
	s.enqueueOne(t, &pb.EnqueueRequest{Queue: strings.Repeat("z", 128)})
	s.enqueueOne(t, &pb.EnqueueRequest{Queue: "0._-"})
}

// TestR13_LeaseTellsAllThatAWorkerNeeds.
func TestR13_LeaseTellsAllThatAWorkerNeeds(t *testing.T) {
	s := serve(t, newStore(t, "q"), Config{})
	id := s.enqueueOne(t, &pb.EnqueueRequest{Queue: "q", Payload: jsonPayload("1"), Headers: map[string]string{"h": "v"},
		Policy: &pb.JobPolicy{MaxAttempts: proto.Int32(3), Backoff: &pb.Backoff{Initial: durationpb.New(0)}}})
	first := s.acquireOne(t, "q")
	if _, err := s.leases.Heartbeat(t.Context(), &pb.HeartbeatRequest{LeaseToken: first.GetLeaseToken(), Stage: proto.String("psp_call"), Checkpoint: []byte("cp")}); err != nil {
		t.Fatal(err)
	}
	fail, err := s.leases.Fail(t.Context(), &pb.FailRequest{LeaseToken: first.GetLeaseToken(), Error: &pb.JobError{Code: "c", Message: "m"}, RetryAfter: durationpb.New(0)})
	if err != nil || fail.GetAttemptsLeft() != 2 || fail.GetState() != pb.JobState_JOB_STATE_PENDING {
		t.Fatalf("fail: %v %v", fail, err)
	}
	l := s.acquireOne(t, "q")
	if l.GetJob().GetJobId() != id || l.GetLeaseNo() != 2 || l.GetAttempt() != 2 || l.GetMaxAttempts() != 3 {
		t.Errorf("job %s, lease %d, attempt %d of %d", l.GetJob().GetJobId(), l.GetLeaseNo(), l.GetAttempt(), l.GetMaxAttempts())
	}
	if l.GetLastStage() != "psp_call" || string(l.GetLastCheckpoint()) != "cp" || l.GetJob().Checkpoint != nil {
		t.Errorf("stage %q, checkpoint %q", l.GetLastStage(), l.GetLastCheckpoint())
	}
	remaining := l.GetRemaining().AsDuration()
	if remaining <= 0 || remaining > time.Minute || l.GetNextHeartbeatIn().AsDuration() != remaining/3 || l.GetLeaseUntil() == nil {
		t.Errorf("remaining %v, next heartbeat in %v", remaining, l.GetNextHeartbeatIn().AsDuration())
	}
	if l.GetJob().GetPayload().GetJson() != "1" || l.GetJob().GetHeaders()["h"] != "v" || l.GetJob().GetLastError().GetCode() != "c" {
		t.Errorf("job %v", l.GetJob())
	}
	if ref, ok := s.tokens.Open(l.GetLeaseToken()); !ok || formatID(ref.JobID) != id || ref.LeaseNo != 2 {
		t.Errorf("the token is of %+v", ref)
	}
}

// TestViews: BASIC has no content, whatever the store gave; the policy in force has the
// defaults filled in.
func TestViews(t *testing.T) {
	s := serve(t, newStore(t, "q"), Config{})
	id := s.enqueueOne(t, &pb.EnqueueRequest{Queue: "q", Payload: jsonPayload("1"), Headers: map[string]string{"h": "v"}, IdempotencyKey: proto.String("k")})
	for _, by := range []*pb.GetJobRequest{
		{By: &pb.GetJobRequest_JobId{JobId: id}},
		{By: &pb.GetJobRequest_Key{Key: &pb.JobKey{Queue: "q", IdempotencyKey: "k"}}, View: pb.JobView_JOB_VIEW_BASIC},
	} {
		resp, err := s.jobs.GetJob(t.Context(), by)
		if err != nil {
			t.Fatal(err)
		}
		j := resp.GetJob()
		if j.GetJobId() != id || j.Payload != nil || j.Headers != nil || j.GetPriority() != 5 {
			t.Errorf("got %v", j)
		}
		want := &pb.JobPolicy{
			MaxAttempts: proto.Int32(25), MaxExpirations: proto.Int32(5), LeaseDuration: durationpb.New(time.Minute),
			CancelGrace: durationpb.New(5 * time.Minute), IdempotencyRetention: durationpb.New(7 * 24 * time.Hour),
			Backoff: &pb.Backoff{Initial: durationpb.New(time.Second), Factor: proto.Float64(2), Cap: durationpb.New(time.Hour), Jitter: proto.Float64(0.2)},
		}
		if !proto.Equal(j.GetPolicy(), want) {
			t.Errorf("policy %v", j.GetPolicy())
		}
	}
	full := jobOut(&store.Job{Payload: &store.Payload{Data: []byte("x")}, Result: &store.Payload{Data: []byte("y")}, Checkpoint: []byte("z")}, true)
	if string(full.GetPayload().GetData()) != "x" || string(full.GetResult().GetData()) != "y" || string(full.GetCheckpoint()) != "z" {
		t.Errorf("FULL: %v", full)
	}
	if p := payloadOut(&store.Payload{JSON: true, Data: []byte("null")}); p.GetJson() != "null" {
		t.Errorf("JSON came back as %v", p)
	}
}

func TestUpdateMask(t *testing.T) {
	for paths, want := range map[string]int{
		"policy": 11, "policy.backoff": 4, "policy.backoff.cap": 1, "policy policy.backoff policy.max_attempts": 11,
		"on_expiry stall_ends_lease": 2, "policy.max_runtime on_expiry": 2,
	} {
		in := &intake{now: time.Now}
		u := in.queueUpdate(&pb.UpdateQueueRequest{Queue: &pb.Queue{Name: "q"}, UpdateMask: &fieldmaskpb.FieldMask{Paths: strings.Fields(paths)}})
		if err := in.err(); err != nil || len(u.Fields) != want {
			t.Errorf("%s: %v, %v", paths, u.Fields, err)
		}
	}
	// Every field of the policy can be named by its path in the proto.
	for _, f := range policyPaths((&pb.JobPolicy{}).ProtoReflect().Descriptor().Fields(), "policy.") {
		if len(maskFields(f)) == 0 {
			t.Errorf("%s cannot be updated", f)
		}
	}
	for _, f := range []string{"", "*", "name", "paused", "policy.", "policy.unknown", "backoff", "policy.backoff.initial.seconds"} {
		if got := maskFields(f); got != nil {
			t.Errorf("%q names %v", f, got)
		}
	}
}

func policyPaths(fields protoreflect.FieldDescriptors, prefix string) []string {
	var out []string
	for i := range fields.Len() {
		f := fields.Get(i)
		out = append(out, prefix+string(f.Name()))
		if f.Message() != nil && f.Message().FullName() == "leasehold.v1.Backoff" {
			out = append(out, policyPaths(f.Message().Fields(), prefix+string(f.Name())+".")...)
		}
	}
	return out
}

// TestUpdateQueueSetsAndUnsets what the mask names, and nothing else.
func TestUpdateQueueSetsAndUnsets(t *testing.T) {
	s := serve(t, newStore(t), Config{})
	queue := &pb.Queue{Name: "q", OnExpiry: pb.OnExpiry_ON_EXPIRY_HOLD, StallEndsLease: true,
		Policy: &pb.JobPolicy{MaxAttempts: proto.Int32(3), MaxRuntime: durationpb.New(time.Hour)}}
	created, err := s.queues.CreateQueue(t.Context(), &pb.CreateQueueRequest{Queue: queue})
	if err != nil || !proto.Equal(created.GetQueue().GetPolicy(), queue.GetPolicy()) || created.GetQueue().GetCreatedAt() == nil {
		t.Fatalf("created %v, %v", created, err)
	}
	updated, err := s.queues.UpdateQueue(t.Context(), &pb.UpdateQueueRequest{
		Queue:      &pb.Queue{Name: "q", Policy: &pb.JobPolicy{MaxAttempts: proto.Int32(9), MaxExpirations: proto.Int32(2)}},
		UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"policy.max_runtime", "policy.max_expirations", "stall_ends_lease"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	got := updated.GetQueue()
	want := &pb.JobPolicy{MaxAttempts: proto.Int32(3), MaxExpirations: proto.Int32(2)}
	if !proto.Equal(got.GetPolicy(), want) || got.GetStallEndsLease() || got.GetOnExpiry() != pb.OnExpiry_ON_EXPIRY_HOLD {
		t.Errorf("updated to %v", got)
	}
}

// TestEveryDiagnosisHasItsRemedy, one that the proto knows.
func TestEveryDiagnosisHasItsRemedy(t *testing.T) {
	for n := range pb.Diagnosis_name {
		if n == 0 {
			continue
		}
		out := stuckOut(&store.StuckJob{JobID: 1, Diagnosis: store.Diagnosis(n)})
		if out.GetRemedy() == 0 || out.GetRemedyText() == "" || pb.Remedy_name[int32(out.GetRemedy())] == "" {
			t.Errorf("%v: %v", pb.Diagnosis(n), out)
		}
	}
}

// TestNumbersOfTheProtoAreThoseOfTheStore: they are converted by number.
func TestNumbersOfTheProtoAreThoseOfTheStore(t *testing.T) {
	for n, name := range pb.JobState_name {
		if got := store.State(n).String(); n != 0 && "JOB_STATE_"+got != name {
			t.Errorf("state %d is %s and %s", n, got, name)
		}
	}
	for store, proto := range map[store.End]pb.LeaseEnd{
		store.EndNone: pb.LeaseEnd_LEASE_END_UNSPECIFIED, store.EndCompleted: pb.LeaseEnd_LEASE_END_COMPLETED,
		store.EndCompletedLate: pb.LeaseEnd_LEASE_END_COMPLETED_LATE, store.EndFailed: pb.LeaseEnd_LEASE_END_FAILED,
		store.EndFailedPermanently: pb.LeaseEnd_LEASE_END_FAILED_PERMANENTLY, store.EndExpired: pb.LeaseEnd_LEASE_END_EXPIRED,
		store.EndOverran: pb.LeaseEnd_LEASE_END_OVERRAN, store.EndStalled: pb.LeaseEnd_LEASE_END_STALLED,
		store.EndReleased: pb.LeaseEnd_LEASE_END_RELEASED, store.EndUndelivered: pb.LeaseEnd_LEASE_END_UNDELIVERED,
	} {
		if int32(store) != int32(proto) {
			t.Errorf("%v is %d and %d", proto, store, proto)
		}
	}
	for store, proto := range map[store.EmptyReason]pb.EmptyReason{
		store.NotEmpty: pb.EmptyReason_EMPTY_REASON_UNSPECIFIED, store.NoReadyJobs: pb.EmptyReason_EMPTY_REASON_NO_READY_JOBS,
		store.QueuePaused: pb.EmptyReason_EMPTY_REASON_QUEUE_PAUSED, store.JobLeased: pb.EmptyReason_EMPTY_REASON_JOB_LEASED,
		store.JobNotDue: pb.EmptyReason_EMPTY_REASON_JOB_NOT_DUE, store.JobStuck: pb.EmptyReason_EMPTY_REASON_JOB_STUCK,
		store.JobFinished: pb.EmptyReason_EMPTY_REASON_JOB_FINISHED,
	} {
		if int32(store) != int32(proto) {
			t.Errorf("%v is %d and %d", proto, store, proto)
		}
	}
	for store, proto := range map[store.Diagnosis]pb.Diagnosis{
		store.Held: pb.Diagnosis_DIAGNOSIS_HELD, store.CrashLoop: pb.Diagnosis_DIAGNOSIS_CRASH_LOOP, store.Overrun: pb.Diagnosis_DIAGNOSIS_OVERRUN,
		store.LeaseExpired: pb.Diagnosis_DIAGNOSIS_LEASE_EXPIRED, store.Stalled: pb.Diagnosis_DIAGNOSIS_STALLED,
		store.NeverHeartbeated: pb.Diagnosis_DIAGNOSIS_NEVER_HEARTBEATED, store.WorkerSilent: pb.Diagnosis_DIAGNOSIS_WORKER_SILENT,
	} {
		if int32(store) != int32(proto) {
			t.Errorf("%v is %d and %d", proto, store, proto)
		}
	}
	for store, proto := range map[store.OnExpiry]pb.OnExpiry{
		store.OnExpiryUnset: pb.OnExpiry_ON_EXPIRY_UNSPECIFIED, store.OnExpiryRequeue: pb.OnExpiry_ON_EXPIRY_REQUEUE, store.OnExpiryHold: pb.OnExpiry_ON_EXPIRY_HOLD,
	} {
		if int32(store) != int32(proto) {
			t.Errorf("%v is %d and %d", proto, store, proto)
		}
	}
}

func TestFittingAlwaysMovesOn(t *testing.T) {
	big := &pb.Job{StateReason: strings.Repeat("x", maxAnswerBytes)}
	small := &pb.Job{StateReason: "x"}
	for name, c := range map[string]struct {
		in   []*pb.Job
		used int
		want int
	}{
		"none": {nil, 0, 0}, "one too large": {[]*pb.Job{big, small}, 0, 1}, "all": {slices.Repeat([]*pb.Job{small}, 9), 0, 9},
		"little room": {slices.Repeat([]*pb.Job{small}, 9), maxAnswerBytes - 30, 2},
	} {
		if got := fitting(c.in, c.used); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}
