package server

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/server/identity"
)

// Authenticator finds out who calls: the identity behind a bearer token (empty: none) or a
// verified client certificate (nil: none). It is asked with each call and must be quick. Its
// errors are those of package identity.
type Authenticator interface {
	Authenticate(ctx context.Context, token string, certificate *x509.Certificate) (*identity.Identity, error)
}

// RoleMissingError refuses a call, or an item, that its caller has no right to.
type RoleMissingError struct {
	Role  pb.Role
	Queue string // as the caller named it, or of the job that it named; empty: every queue
}

func (e *RoleMissingError) Error() string {
	where := "every queue"
	if e.Queue != "" {
		where = fmt.Sprintf("queue %q", cut(e.Queue, maxQueueBytes))
	}
	return fmt.Sprintf("this needs the role %s on %s", roleWord(e.Role), where)
}

func roleWord(r pb.Role) string { return strings.TrimPrefix(r.String(), "ROLE_") }

// maxQueueBytes is the length of a name of a queue; what callers name may be longer.
const maxQueueBytes = 128

// RateLimitedError refuses a call above the rate of its identity.
type RateLimitedError struct{ RetryAfter time.Duration }

func (*RateLimitedError) Error() string { return "this identity calls more often than it may" }

// requiredRoles says which role each method needs, by its full name, as the proto declares.
var requiredRoles = readRoles()

func readRoles() map[string]pb.Role {
	roles := map[string]pb.Role{}
	for _, file := range serviceFiles {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				roles[fullMethod(methods.Get(j))] = roleOf(methods.Get(j))
			}
		}
	}
	return roles
}

func fullMethod(m protoreflect.MethodDescriptor) string {
	return "/" + string(m.Parent().FullName()) + "/" + string(m.Name())
}

func roleOf(m protoreflect.MethodDescriptor) pb.Role {
	options, _ := m.Options().(*descriptorpb.MethodOptions)
	role, _ := proto.GetExtension(options, pb.E_RequiredRole).(pb.Role)
	return role
}

// endsOrRenews are the methods that no limit of an identity refuses: a lease that cannot be
// renewed or ended is work done twice, and a failure report that is lost hides why.
var endsOrRenews = map[string]bool{
	pb.LeaseService_Heartbeat_FullMethodName: true, pb.LeaseService_BatchHeartbeat_FullMethodName: true,
	pb.LeaseService_Complete_FullMethodName: true, pb.LeaseService_BatchComplete_FullMethodName: true,
	pb.LeaseService_Fail_FullMethodName: true, pb.LeaseService_BatchFail_FullMethodName: true,
	pb.LeaseService_Release_FullMethodName: true, pb.LeaseService_BatchRelease_FullMethodName: true,
}

const (
	ourMethods    = "/leasehold.v1."
	healthMethods = "/grpc.health.v1."
)

type identityKey struct{}

// callerOf is who makes a call. Without authentication that is anyone, who may do all; a call
// that came by no authentication although there is one may do nothing.
func (s *Server) callerOf(ctx context.Context) *identity.Identity {
	if s.cfg.Access == nil {
		return anyone
	}
	if id, ok := ctx.Value(identityKey{}).(*identity.Identity); ok {
		return id
	}
	return nobody
}

var (
	anyone = identity.Anyone()
	nobody = identity.Nobody()
)

// authUnary finds out who calls, and lets through what that identity may do. What a batch of
// writes touches is checked item by item further in.
func (s *Server) authUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if strings.HasPrefix(info.FullMethod, healthMethods) {
		return handler(ctx, req) // probes have no credentials, and learn nothing but "serving"
	}
	ctx, err := s.authenticate(ctx)
	if err != nil {
		return nil, err
	}
	if !strings.HasPrefix(info.FullMethod, ourMethods) {
		return handler(ctx, req)
	}
	s.fillActor(ctx, req)
	resp, err := s.authorized(ctx, req, info.FullMethod, handler)
	s.audit(ctx, info.FullMethod, req, resp, err)
	return resp, err
}

func (s *Server) authStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if strings.HasPrefix(info.FullMethod, healthMethods) {
		return handler(srv, stream)
	}
	ctx, err := s.authenticate(stream.Context())
	if err != nil {
		return err
	}
	return handler(srv, &streamWith{ServerStream: stream, ctx: ctx})
}

func (s *Server) authenticate(ctx context.Context) (context.Context, error) {
	if s.cfg.Access == nil {
		return ctx, nil
	}
	token, err := bearerToken(ctx)
	if err != nil {
		return ctx, err
	}
	var id *identity.Identity
	err = guard(func() error {
		id, err = s.cfg.Access.Authenticate(ctx, token, peerCertificate(ctx))
		return err
	})
	if err != nil {
		return ctx, err
	}
	callOf(ctx).setCaller(id.Name)
	return context.WithValue(ctx, identityKey{}, id), nil
}

// fillActor records the caller of an act that does not state who acts.
func (s *Server) fillActor(ctx context.Context, req any) {
	m, ok := req.(proto.Message)
	if !ok || s.cfg.Access == nil {
		return
	}
	field := m.ProtoReflect().Descriptor().Fields().ByName("actor")
	if field != nil && field.Kind() == protoreflect.StringKind && !m.ProtoReflect().Has(field) {
		m.ProtoReflect().Set(field, protoreflect.ValueOfString(s.callerOf(ctx).Name))
	}
}

// bearerToken is the token that a call shows, empty where it shows none. Two are refused:
// proxies and servers that pick different ones are a way in.
func bearerToken(ctx context.Context) (string, error) {
	values := metadata.ValueFromIncomingContext(ctx, "authorization")
	if len(values) == 0 {
		return "", nil
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	token = strings.TrimSpace(token)
	if len(values) > 1 || !strings.EqualFold(scheme, "bearer") || token == "" {
		return "", &identity.InvalidError{Kind: identity.FromToken, Why: `the metadata authorization must be one value, "Bearer " and the token`}
	}
	return token, nil
}

// peerCertificate is the certificate of the client, where the handshake has verified one.
func peerCertificate(ctx context.Context) *x509.Certificate {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 || len(info.State.VerifiedChains[0]) == 0 {
		return nil
	}
	return info.State.VerifiedChains[0][0]
}

// authorized runs the handler of a method of ours if the caller has its role and stays below
// its limits, for the queues that it may touch.
func (s *Server) authorized(ctx context.Context, req any, method string, handler grpc.UnaryHandler) (any, error) {
	id, role := s.callerOf(ctx), requiredRoles[method]
	if role == pb.Role_ROLE_UNSPECIFIED || !id.Somewhere(role) {
		return nil, &RoleMissingError{Role: role, Queue: queueNamed(req)}
	}
	if !endsOrRenews[method] {
		if err := limited(id, req); err != nil {
			return nil, err
		}
	}
	if id.Everywhere(role) && (role != pb.Role_ROLE_VIEWER || id.SeesContentsEverywhere()) {
		return handler(ctx, req)
	}
	rule, known := visits[method]
	if !known {
		// A method that nobody thought of is closed to those who may not touch every queue.
		return nil, &RoleMissingError{Role: role}
	}
	v := &visit{Server: s, ctx: ctx, id: id, role: role, handler: handler}
	var resp any
	err := guard(func() (err error) { resp, err = rule(v, req); return err })
	return resp, err
}

func limited(id *identity.Identity, req any) error {
	if wait, ok := id.Admit(time.Now()); !ok {
		return &RateLimitedError{RetryAfter: wait}
	}
	most := id.MaxRequestBytes()
	if m, ok := req.(proto.Message); ok && most > 0 {
		if size := proto.Size(m); size > most {
			return &invalidRequestError{violations: []violation{{
				field: "request", tooLarge: true, description: fmt.Sprintf("must have at most %d bytes for this identity, got %d", most, size),
			}}}
		}
	}
	return nil
}

// credentialFault maps what is wrong with credentials and rights.
func credentialFault(err error) (fault, bool) {
	if _, ok := errors.AsType[*identity.MissingError](err); ok {
		return newFault(pb.ErrorReason_ERROR_REASON_CREDENTIALS_MISSING, err.Error()), true
	}
	if e, ok := errors.AsType[*identity.InvalidError](err); ok {
		f := newFault(pb.ErrorReason_ERROR_REASON_CREDENTIALS_INVALID, e.Error())
		f.retryAfter = e.RetryAfter
		return f, true
	}
	if e, ok := errors.AsType[*RoleMissingError](err); ok {
		f := newFault(pb.ErrorReason_ERROR_REASON_ROLE_MISSING, e.Error(), "role", roleWord(e.Role))
		if e.Queue != "" {
			f.addFact("queue", cut(e.Queue, maxQueueBytes))
		}
		return f, true
	}
	if e, ok := errors.AsType[*RateLimitedError](err); ok {
		f := newFault(pb.ErrorReason_ERROR_REASON_RATE_LIMITED, e.Error())
		f.retryAfter = e.RetryAfter
		return f, true
	}
	return fault{}, false
}
