package operate

import (
	"context"
	"io"
	"os"
	"os/user"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
	"google.golang.org/grpc"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// Host is what the commands need of the program that they are part of. All is required.
type Host struct {
	In       io.Reader
	Out, Err io.Writer
	Env      func(name string) (string, bool)
	// Dialer adds the flags that say where the service is, and returns what connects to it
	// and tells its address.
	Dialer func(*pflag.FlagSet) (dial func(context.Context) (*grpc.ClientConn, error), address func() string)
	// ApplyEnv sets flags that were not given from the environment.
	ApplyEnv func(*pflag.FlagSet) error
}

const defaultTimeout = 30 * time.Second

// Commands are the commands of this package. Their errors are *Failure, but for those of
// cobra, which are wrong usage.
func Commands(h Host) []*cobra.Command {
	return []*cobra.Command{newJobs(h), newQueues(h), newStuck(h), newEnqueue(h), newTop(h), newLint(h)}
}

// session is one run of a command: a connection, and how to answer.
type session struct {
	*printer
	host    Host
	actor   string
	jobs    pb.JobServiceClient
	queues  pb.QueueServiceClient
	leases  pb.LeaseServiceClient
	closing func() error
}

// common are the flags of every command of this package.
type common struct {
	flags   *pflag.FlagSet
	dial    func(context.Context) (*grpc.ClientConn, error)
	address func() string
	output  string
	timeout time.Duration
	actor   string
}

// command makes a cobra command of one that needs a session.
func (h Host) command(cmd *cobra.Command, run func(context.Context, *session, []string) error) *cobra.Command {
	c := &common{flags: pflag.NewFlagSet("", pflag.ContinueOnError)}
	c.dial, c.address = h.Dialer(c.flags)
	c.flags.StringVarP(&c.output, "output", "o", "", "table, json or yaml (default: table on a terminal, else json)")
	c.flags.DurationVar(&c.timeout, "timeout", defaultTimeout, "how long one call may take, 100ms..1h")
	c.flags.StringVar(&c.actor, "actor", "", "who acts, for the record (default: your user and host name)")
	cmd.Flags().AddFlagSet(c.flags)
	must(cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json", "yaml"}, cobra.ShellCompDirectiveNoFileComp)))
	names := h.queueNames(c)
	if strings.HasSuffix(cmd.Use, " QUEUE") {
		cmd.ValidArgsFunction = names
	} else {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	if cmd.Flags().Lookup("queue") != nil {
		must(cmd.RegisterFlagCompletionFunc("queue", names))
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s, err := h.open(cmd.Context(), c)
		if err != nil {
			return err
		}
		defer func() { _ = s.closing() }()
		return run(cmd.Context(), s, args)
	}
	return cmd
}

func (h Host) open(ctx context.Context, c *common) (*session, error) {
	if err := h.ApplyEnv(c.flags); err != nil {
		return nil, usage("%w", err)
	}
	if c.timeout < 100*time.Millisecond || c.timeout > time.Hour {
		return nil, usage("--timeout must be 100ms..1h, got %v", c.timeout)
	}
	p, err := newPrinter(h, c.output)
	if err != nil {
		return nil, err
	}
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, usage("%w", err)
	}
	calls := &caller{ClientConn: conn, address: c.address(), timeout: c.timeout}
	if c.actor == "" {
		c.actor = whoami()
	}
	return &session{
		printer: p, host: h, actor: c.actor, closing: conn.Close,
		jobs: pb.NewJobServiceClient(calls), queues: pb.NewQueueServiceClient(calls), leases: pb.NewLeaseServiceClient(calls),
	}, nil
}

// completionTimeout is what a shell waits for names behind the Tab key.
const completionTimeout = 2 * time.Second

// queueNames completes names of queues. Where the service is away there are none: a shell
// shows no errors.
func (h Host) queueNames(c *common) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(cmd.Context()), completionTimeout)
		defer cancel()
		s, err := h.open(ctx, c)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer func() { _ = s.closing() }()
		size := int32(maxPage)
		resp, err := s.queues.ListQueues(ctx, &pb.ListQueuesRequest{PageSize: &size})
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []string
		for _, q := range resp.GetQueues() {
			if strings.HasPrefix(q.GetName(), typed) {
				names = append(names, q.GetName())
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// whoami is what the record has where nobody said who acts.
func whoami() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if host, err := os.Hostname(); err == nil {
		name += "@" + host
	}
	return cutBytes(name, 256)
}

// terminal tells whether a stream is one, and how wide it is.
func terminal(stream any) (width int, is bool) {
	file, ok := stream.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return 0, false
	}
	width, _, err := term.GetSize(int(file.Fd()))
	if err != nil {
		width = 80
	}
	return width, true
}

// group is a command that has others.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		_ = cmd.Help() // to a stream that is gone there is nothing to say
		return usage("a command is needed behind %s", use)
	}}
	cmd.AddCommand(commands...)
	return cmd
}

// must is for what only a mistake in this package breaks.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
