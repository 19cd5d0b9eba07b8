package server

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"runtime/debug"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
)

// unaryLayer and streamLayer are interceptors with the name by which a test asserts their
// order.
type unaryLayer struct {
	name string
	run  grpc.UnaryServerInterceptor
}

type streamLayer struct {
	name string
	run  grpc.StreamServerInterceptor
}

// unaryLayers are the interceptors, outermost first. The order carries meaning: metrics and
// logging see the status that the client sees, because error mapping is inside them; the
// request id is known to all; identities are checked between errors and validation,
// so that a stranger learns nothing of bounds; recovery is innermost, so that a panic is
// mapped, logged and counted like any other error.
func (s *Server) unaryLayers() []unaryLayer {
	return []unaryLayer{
		{"request id", requestIDUnary},
		{"metrics", s.metrics.rpcs.UnaryServerInterceptor()},
		{"logging", s.logUnary},
		{"errors", errorsUnary},
		{"auth", s.authUnary},
		{"validation", s.validateUnary},
		{"recovery", recoverUnary},
	}
}

// streamLayers are those of the streams, which are gRPC's own services: their messages have
// no rules of ours.
func (s *Server) streamLayers() []streamLayer {
	return []streamLayer{
		{"request id", requestIDStream},
		{"metrics", s.metrics.rpcs.StreamServerInterceptor()},
		{"logging", s.logStream},
		{"errors", errorsStream},
		{"auth", s.authStream},
		{"drain", s.drainStream},
		{"recovery", recoverStream},
	}
}

func (s *Server) chain() []grpc.ServerOption {
	var unary []grpc.UnaryServerInterceptor
	for _, l := range s.unaryLayers() {
		unary = append(unary, l.run)
	}
	var stream []grpc.StreamServerInterceptor
	for _, l := range s.streamLayers() {
		stream = append(stream, l.run)
	}
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(unary...), grpc.ChainStreamInterceptor(stream...)}
}

// requestIDHeader carries the id by which a caller and the log speak of one call.
const requestIDHeader = "x-request-id"

const maxRequestIDBytes = 128

type requestIDKey struct{}

func requestIDOf(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return id
}

func requestIDUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	ctx, id := withRequestID(ctx)
	// Fails only where the headers are sent already, which a unary call does at its end.
	_ = grpc.SetHeader(ctx, metadata.Pairs(requestIDHeader, id))
	return handler(ctx, req)
}

func requestIDStream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx, id := withRequestID(stream.Context())
	_ = stream.SetHeader(metadata.Pairs(requestIDHeader, id))
	return handler(srv, &streamWith{ServerStream: stream, ctx: ctx})
}

// withRequestID takes the caller's id, or makes one where there is none or one that could
// forge a log line.
func withRequestID(ctx context.Context) (context.Context, string) {
	id := ""
	if ids := metadata.ValueFromIncomingContext(ctx, requestIDHeader); len(ids) == 1 && wellFormedID(ids[0]) {
		id = ids[0]
	} else {
		id = newRequestID()
	}
	return context.WithValue(ctx, requestIDKey{}, id), id
}

func wellFormedID(id string) bool {
	for _, c := range []byte(id) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_', c == '.', c == ':', c == '/':
		default:
			return false
		}
	}
	return id != "" && len(id) <= maxRequestIDBytes
}

func newRequestID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails, see its documentation
	return hex.EncodeToString(b[:])
}

func errorsUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	resp, err := handler(ctx, req)
	if err != nil {
		return nil, asStatus(ctx, err)
	}
	return resp, nil
}

func errorsStream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	err := handler(srv, stream)
	if err != nil {
		return asStatus(stream.Context(), err)
	}
	return nil
}

// validateUnary guards itself, because recovery is inside it: a message that made the
// validation panic would end the process for everybody.
func (s *Server) validateUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if m, ok := req.(proto.Message); ok && s.validator.knows(m) {
		if err := guard(func() error { return s.validator.check(m) }); err != nil {
			return nil, err
		}
	}
	return handler(ctx, req)
}

func recoverUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (_ any, err error) {
	defer recovered(&err)
	return handler(ctx, req)
}

func recoverStream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	defer recovered(&err)
	return handler(srv, stream)
}

// recovered turns a panic into an error that the mapping does not know: INTERNAL, a fixed
// message for the client and the stack for the log.
func recovered(err *error) {
	if r := recover(); r != nil {
		*err = &panicError{value: r, stack: debug.Stack()}
	}
}

// drainStreamAfter lets a watcher of health read NOT_SERVING before its stream ends.
const drainStreamAfter = 100 * time.Millisecond

// drainStream ends streams when the replica drains. gRPC's own services hold theirs open
// for as long as the client likes, so that each watcher of health would hold up every
// shutdown until its time is over and calls are cut off.
func (s *Server) drainStream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	done := make(chan error, 1)
	// The handler ends once this interceptor has returned: that ends the stream it reads.
	go func() { done <- handler(srv, stream) }()
	select {
	case err := <-done:
		return err
	case <-s.draining:
	}
	timer := time.NewTimer(drainStreamAfter)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return &DrainingError{}
	}
}
