package operate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// The exit codes.
const (
	exitFailed = 1
	exitUsage  = 2
	exitFound  = 3
)

// Failure is an error and the code to exit with.
type Failure struct {
	Code int
	Err  error
}

func (f *Failure) Error() string { return f.Err.Error() }
func (f *Failure) Unwrap() error { return f.Err }

func usage(format string, args ...any) error { return &Failure{exitUsage, fmt.Errorf(format, args...)} }
func failed(format string, args ...any) error {
	return &Failure{exitFailed, fmt.Errorf(format, args...)}
}
func found(format string, args ...any) error { return &Failure{exitFound, fmt.Errorf(format, args...)} }

// caller makes calls with a timeout of their own, and turns what goes wrong into one line for
// people.
type caller struct {
	*grpc.ClientConn
	address string
	timeout time.Duration
}

// Invoke is grpc.ClientConnInterface.
func (c *caller) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	limited, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	err := c.ClientConn.Invoke(limited, method, args, reply, opts...)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return &Failure{exitFailed, context.Cause(ctx)}
	}
	return c.explain(method, err)
}

// callError is a refusal of the service, with its reason for those who decide by it.
type callError struct {
	code   codes.Code
	reason string
	text   string
}

func (e *callError) Error() string { return e.text }

// again tells whether the same call may go well a moment later.
func again(err error) bool {
	e, is := errors.AsType[*callError](err)
	return is && (e.code == codes.Unavailable || e.code == codes.Unknown || e.reason == "OVERLOADED" || e.reason == "RATE_LIMITED")
}

func (c *caller) explain(method string, err error) error {
	st := status.Convert(err)
	e := &callError{code: st.Code()}
	var fields []string
	for _, detail := range st.Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			e.reason = d.GetReason()
		case *errdetails.BadRequest:
			for _, v := range d.GetFieldViolations() {
				fields = append(fields, clean(v.GetField())+": "+clean(v.GetDescription()))
			}
		}
	}
	name := method[strings.LastIndexByte(method, '/')+1:]
	code := exitFailed
	said := clean(st.Message())
	switch {
	case e.code == codes.Unavailable && e.reason == "":
		e.text = fmt.Sprintf("cannot reach the service at %s: %s", c.address, dialCause(said))
	case e.code == codes.DeadlineExceeded:
		e.text = fmt.Sprintf("the service at %s did not answer %s within %v (--timeout)", c.address, name, c.timeout)
	case e.code == codes.Unimplemented:
		e.text = fmt.Sprintf("the service at %s does not know %s: it is older than this command", c.address, name)
	case e.code == codes.PermissionDenied:
		e.text = fmt.Sprintf("not allowed: %s needs the role %s: %s", name, roleOf(method), said)
	case e.code == codes.Unauthenticated:
		e.text = fmt.Sprintf("the service at %s does not accept the credentials (--token-file, --tls-cert): %s", c.address, said)
	case e.code == codes.InvalidArgument && len(fields) > 0:
		code, e.text = exitUsage, strings.Join(fields, "; ")
	case e.code == codes.InvalidArgument:
		code, e.text = exitUsage, said
	case e.reason == "OUTCOME_UNKNOWN":
		e.text = said + ": it may or may not have happened, look before you repeat it"
	default:
		e.text = said
	}
	if e.reason != "" {
		e.text += " [" + e.reason + "]"
	}
	return &Failure{code, e}
}

// dialCause leaves out what gRPC puts around the cause.
func dialCause(text string) string {
	for _, noise := range []string{"connection error: desc = ", "transport: ", "Error while dialing: ", "\""} {
		text = strings.ReplaceAll(text, noise, "")
	}
	return text
}

// roleOf is the role that the proto demands for a method.
func roleOf(method string) string {
	name := protoreflect.FullName(strings.ReplaceAll(strings.TrimPrefix(method, "/"), "/", "."))
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
	if err != nil {
		return "?"
	}
	role, is := proto.GetExtension(found.Options(), pb.E_RequiredRole).(pb.Role)
	if !is {
		return "?"
	}
	return word(role, "ROLE_")
}
