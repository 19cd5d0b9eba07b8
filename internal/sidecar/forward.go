package sidecar

import (
	"context"
	"errors"
	"io"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that frames are none of
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// frame is a message that is passed on as it came.
type frame struct{ bytes []byte }

// codec passes frames through and gives everything else to protobuf.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2("proto")} }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if f, ok := v.(*frame); ok {
		return mem.BufferSlice{mem.SliceBuffer(f.bytes)}, nil
	}
	return c.CodecV2.Marshal(v)
}

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if f, ok := v.(*frame); ok {
		f.bytes = data.Materialize()
		return nil
	}
	return c.CodecV2.Unmarshal(data, v)
}

// upstreamContext is the caller's context with the metadata that goes on to the service. The
// identity is the sidecar's own: a caller's authorization stays here.
func upstreamContext(ctx context.Context) context.Context {
	in, _ := metadata.FromIncomingContext(ctx)
	out := metadata.MD{}
	for key, values := range in {
		if !strings.HasPrefix(key, ":") && !strings.HasPrefix(key, "grpc-") && !hop[key] {
			out[key] = values
		}
	}
	return metadata.NewOutgoingContext(ctx, out)
}

// hop are the headers of one connection, and the caller's authorization.
var hop = map[string]bool{"content-type": true, "user-agent": true, "te": true, "authorization": true}

// answerMD is metadata of the service as it goes on to the caller.
func answerMD(md metadata.MD) metadata.MD {
	out := metadata.MD{}
	for key, values := range md {
		if !strings.HasPrefix(key, ":") && !strings.HasPrefix(key, "grpc-") && !hop[key] {
			out[key] = values
		}
	}
	return out
}

// invoke makes one try of a call by conn.
func invoke(ctx context.Context, conn grpc.ClientConnInterface, method string, req, resp any) (o outcome) {
	o.err = conn.Invoke(upstreamContext(ctx), method, req, resp,
		grpc.Header(&o.header), grpc.Trailer(&o.trailer), grpc.ForceCodecV2(newCodec()))
	return o
}

// forward is the handler of every method that is not in calls.go.
func (s *Sidecar) forward(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	if !unary(method) {
		return s.pump(stream, method)
	}
	var req, resp frame
	if err := stream.RecvMsg(&req); err != nil {
		return err
	}
	o := persist(stream.Context(), harmless(method, req.bytes), func(ctx context.Context) outcome {
		return invoke(ctx, s.cfg.Calls, method, &req, &resp)
	})
	stream.SetTrailer(answerMD(o.trailer))
	if o.err != nil {
		return explained(o)
	}
	if err := stream.SetHeader(answerMD(o.header)); err != nil {
		return err
	}
	return stream.SendMsg(&resp)
}

// descriptor finds a method that this program knows.
func descriptor(method string) protoreflect.MethodDescriptor {
	name := strings.ReplaceAll(strings.TrimPrefix(method, "/"), "/", ".")
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
	if err != nil {
		return nil // of a service that is newer than this program
	}
	d, _ := found.(protoreflect.MethodDescriptor)
	return d
}

func unary(method string) bool {
	d := descriptor(method)
	return d != nil && !d.IsStreamingClient() && !d.IsStreamingServer()
}

// harmless tells whether a call may be made twice: reads, calls about leases, which name exactly
// one lease by its token, and the enqueueing of jobs that have a key.
func harmless(method string, req []byte) bool {
	d := descriptor(method)
	if d == nil {
		return false
	}
	name := string(d.Name())
	switch {
	case strings.HasPrefix(name, "Get"), strings.HasPrefix(name, "List"), name == "Lint":
		return true
	case d.Parent().Name() == "LeaseService":
		return true
	case method == pb.JobService_Enqueue_FullMethodName:
		var job pb.EnqueueRequest
		return proto.Unmarshal(req, &job) == nil && job.IdempotencyKey != nil
	case method == pb.JobService_BatchEnqueue_FullMethodName:
		var jobs pb.BatchEnqueueRequest
		if proto.Unmarshal(req, &jobs) != nil {
			return false
		}
		for _, job := range jobs.GetItems() {
			if job.IdempotencyKey == nil {
				return false
			}
		}
		return true
	}
	return false
}

// explained is the error of an outcome as its caller gets it. What the service said passes word
// for word; where it could not be asked, the caller learns that it was not its connection to the
// sidecar that failed.
func explained(o outcome) error {
	st := status.Convert(o.err)
	if len(o.trailer.Get(reasonTrailer)) > 0 || len(st.Details()) > 0 {
		return o.err
	}
	switch {
	case o.lost:
		return status.Errorf(codes.Unavailable, "the sidecar got no answer from the service within %s", tryTimeout)
	case st.Code() == codes.Unavailable:
		return status.Errorf(codes.Unavailable, "the sidecar cannot reach the service: %s", st.Message())
	}
	return o.err
}

// pump passes on the messages of a stream in both directions until one side ends it.
func (s *Sidecar) pump(stream grpc.ServerStream, method string) error {
	ctx, cancel := context.WithCancel(upstreamContext(stream.Context()))
	defer cancel()
	up, err := s.cfg.Calls.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method, grpc.ForceCodecV2(newCodec()))
	if err != nil {
		return err
	}
	go func() {
		if copyMessages(stream, up) == nil {
			_ = up.CloseSend() // the answer says what became of it
		} else {
			cancel()
		}
	}()
	header, err := up.Header()
	if err == nil && header != nil {
		err = stream.SetHeader(answerMD(header))
	}
	if err == nil {
		err = copyMessages(up, stream)
	}
	stream.SetTrailer(answerMD(up.Trailer()))
	return err
}

// messages is a side of a stream.
type messages interface {
	SendMsg(any) error
	RecvMsg(any) error
}

// copyMessages passes messages on until the end of from, which is nil.
func copyMessages(from, to messages) error {
	for {
		var f frame
		if err := from.RecvMsg(&f); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err := to.SendMsg(&f); err != nil {
			return err
		}
	}
}
