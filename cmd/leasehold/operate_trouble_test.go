package main

import (
	"context"
	"net"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// operatorCommands has each command of an operator with arguments that make it call.
var operatorCommands = map[string]struct {
	args []string
	role string
}{
	"jobs list":     {nil, "viewer"},
	"jobs get":      {[]string{"1", "--why"}, "viewer"},
	"jobs retry":    {[]string{"1"}, "operator"},
	"jobs cancel":   {[]string{"1", "--yes"}, "operator"},
	"jobs resolve":  {[]string{"1", "--dead", "--note", "n", "--yes"}, "operator"},
	"queues list":   {nil, "viewer"},
	"queues get":    {[]string{"q"}, "viewer"},
	"queues create": {[]string{"q"}, "operator"},
	"queues set":    {[]string{"q", "--on-expiry", "hold"}, "operator"},
	"queues pause":  {[]string{"q"}, "operator"},
	"queues resume": {[]string{"q"}, "operator"},
	"queues delete": {[]string{"q", "--yes"}, "operator"},
	"stuck":         {nil, "viewer"},
	"enqueue":       {[]string{"q"}, "producer"},
	"top":           {nil, "viewer"},
	"lint":          {nil, "viewer"},
}

// TestEveryCommandInTrouble: a service that is down, slow, older or refuses the role is told
// in one line with the right exit code, whatever the command.
func TestEveryCommandInTrouble(t *testing.T) {
	t.Parallel()
	down := freeAddress(t)
	slow := serveNothing(t, func(_ any, stream grpc.ServerStream) error {
		<-stream.Context().Done()
		return stream.Context().Err()
	})
	older := serveNothing(t, nil)
	refuses := serveNothing(t, func(any, grpc.ServerStream) error {
		st, err := status.New(codes.PermissionDenied, "ann has no such role").WithDetails(&errdetails.ErrorInfo{Reason: "ROLE_MISSING", Domain: "leasehold"})
		if err != nil {
			return err
		}
		return st.Err()
	})
	for name, c := range operatorCommands {
		for _, trouble := range []struct {
			what, address, says string
			flags               []string
		}{
			{"down", down, "cannot reach the service at " + down, nil},
			{"slow", slow, "did not answer", []string{"--timeout", "150ms"}},
			{"older", older, "it is older than this command", nil},
			{"refuses", refuses, "needs the role " + c.role + ": ann has no such role [ROLE_MISSING]", nil},
		} {
			t.Run(name+"/"+trouble.what, func(t *testing.T) {
				t.Parallel()
				args := append(append(append(strings.Fields(name), c.args...), trouble.flags...), "--address", trouble.address)
				code, stdout, stderr := runIn(t, nil, args...)
				if code != exitFailed || !strings.Contains(stderr, trouble.says) {
					t.Errorf("exit code %d, want %d and %q:\n%s%s", code, exitFailed, trouble.says, stdout, stderr)
				}
				if lines := strings.Count(stderr, "\n"); lines != 1 {
					t.Errorf("%d lines instead of one:\n%s", lines, stderr)
				}
			})
		}
	}
}

// TestEveryCommandIsTried: a command that is added must be tried as well.
func TestEveryCommandIsTried(t *testing.T) {
	t.Parallel()
	none := func(string) (string, bool) { return "", false }
	var leaves []string
	var walk func(path string, cmd *cobra.Command)
	walk = func(path string, cmd *cobra.Command) {
		path = strings.TrimSpace(path + " " + cmd.Name())
		if !cmd.HasSubCommands() {
			leaves = append(leaves, path)
		}
		for _, child := range cmd.Commands() {
			walk(path, child)
		}
	}
	for _, cmd := range newOperators(streams{}, none) {
		walk("", cmd)
	}
	for _, name := range leaves {
		if _, tried := operatorCommands[name]; !tried {
			t.Errorf("%q is not among those that are tried", name)
		}
	}
	if len(leaves) != len(operatorCommands) {
		t.Errorf("%d commands, %d are tried", len(leaves), len(operatorCommands))
	}
}

// serveNothing is a gRPC server that knows no service of ours; handler answers every call.
func serveNothing(t *testing.T, handler grpc.StreamHandler) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var options []grpc.ServerOption
	if handler != nil {
		options = append(options, grpc.UnknownServiceHandler(handler))
	}
	s := grpc.NewServer(options...)
	go func() { _ = s.Serve(l) }() // it ends with Stop
	t.Cleanup(s.Stop)
	return l.Addr().String()
}
