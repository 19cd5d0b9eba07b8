package servertest

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// rawCodec sends bytes as they are: what no generated client can be made to send.
type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error) { return v.([]byte), nil }
func (rawCodec) Unmarshal([]byte, any) error   { return nil }
func (rawCodec) Name() string                  { return "proto" }

// field writes one field of bytes.
func field(n protowire.Number, content string) []byte {
	return protowire.AppendString(protowire.AppendTag(nil, n, protowire.BytesType), content)
}

func wire(m proto.Message, more ...[]byte) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	for _, part := range more {
		b = append(b, part...)
	}
	return b
}

// rawAttack is a message that gRPC itself answers, before the service sees it.
type rawAttack struct {
	name   string
	method string
	bytes  []byte
	code   codes.Code
}

// tryWire sends what gRPC itself answers, and checks that it carries no reason, as the
// contract says: what cannot be decoded is INTERNAL, what is above 4 MiB is
// RESOURCE_EXHAUSTED.
func (v *victim) tryWire(t *testing.T) {
	token := v.live.GetLeaseToken()
	const bad = "\xff\xfe"
	large := strings.Repeat("x", 5_000_000)
	job := &pb.EnqueueRequest{Queue: v.queue}
	for _, a := range []rawAttack{
		{"bad UTF-8 in queue", jobService + "Enqueue", field(1, bad), codes.Internal},
		{"bad UTF-8 in JSON", jobService + "Enqueue", wire(job, field(2, string(field(2, `"`+bad+`"`)))), codes.Internal},
		{"bad UTF-8 in subject", jobService + "Enqueue", wire(job, field(4, bad)), codes.Internal},
		{"bad UTF-8 in a header", jobService + "Enqueue", wire(job, field(3, string(append(field(1, "h"), field(2, bad)...)))), codes.Internal},
		{"bad UTF-8 in an item", jobService + "BatchEnqueue", append(field(1, string(wire(job))), field(1, string(field(1, bad)))...), codes.Internal},
		{"bad UTF-8 in stage", leaseService + "Heartbeat", wire(&pb.HeartbeatRequest{LeaseToken: token}, field(2, bad)), codes.Internal},
		{"bad UTF-8 in an error", leaseService + "Fail", wire(&pb.FailRequest{LeaseToken: token}, field(2, string(field(2, bad)))), codes.Internal},
		{"cut off", leaseService + "Release", wire(&pb.ReleaseRequest{LeaseToken: token})[:20], codes.Internal},
		{"a length beyond the end", leaseService + "Release", append(wire(&pb.ReleaseRequest{LeaseToken: token}), 0x12, 0xff, 0xff, 0xff, 0x7f), codes.Internal},
		{"an endless number", leaseService + "Release", []byte(strings.Repeat("\xff", 100)), codes.Internal},
		{"field number 0", leaseService + "Release", append(wire(&pb.ReleaseRequest{LeaseToken: token}), 0, 0), codes.Internal},
		{"nested too deep", jobService + "Enqueue", wire(job, []byte(strings.Repeat("\xfb\x7f", 20_000))), codes.Internal},
		{"5 MB of result", leaseService + "Complete", wire(&pb.CompleteRequest{LeaseToken: token, Result: bytesOf(large)}), codes.ResourceExhausted},
		{"5 MB of error", leaseService + "Fail", wire(&pb.FailRequest{LeaseToken: token, Error: &pb.JobError{Message: large}}), codes.ResourceExhausted},
		{"5 MB of payload", jobService + "Enqueue", wire(&pb.EnqueueRequest{Queue: v.queue, Payload: bytesOf(large)}), codes.ResourceExhausted},
		{"5 MB of jobs", jobService + "BatchEnqueue", wire(&pb.BatchEnqueueRequest{Items: fiveMegabytes(v.queue)}), codes.ResourceExhausted},
		{"no such method", jobService + "DropEverything", wire(job), codes.Unimplemented},
		{"no such service", "/leasehold.v1.RootService/Enqueue", wire(job), codes.Unimplemented},
	} {
		t.Run(a.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), callTime)
			defer cancel()
			var trailer metadata.MD
			err := v.conn.Invoke(ctx, a.method, a.bytes, nil, grpc.ForceCodec(rawCodec{}), grpc.Trailer(&trailer))
			s := see(t, err, trailer)
			if s.status.Code() != a.code || s.info != nil || len(s.trailer) != 0 {
				t.Errorf("answered %v, %v, trailer %v; want %v without a reason", s.status, s.info, s.trailer, a.code)
			}
		})
	}
}

func fiveMegabytes(queue string) (jobs []*pb.EnqueueRequest) {
	for range 5 {
		jobs = append(jobs, &pb.EnqueueRequest{Queue: queue, Payload: bytesOf(strings.Repeat("x", 1_000_000))})
	}
	return jobs
}

// tryUnknownFields sends a message of nothing that is known: one without its required
// fields.
func (v *victim) tryUnknownFields(t *testing.T) {
	var trailer metadata.MD
	err := v.conn.Invoke(t.Context(), jobService+"Enqueue", field(999, "new"), nil, grpc.ForceCodec(rawCodec{}), grpc.Trailer(&trailer))
	see(t, err, trailer).assert(t, want{code: invalid, reason: "INVALID_REQUEST", fields: []string{"queue"}})
}
