package main

import (
	"context"
	"errors"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"

	"github.com/leasehold/leasehold/cmd/leasehold/operate"
)

// newOperators are the commands of those who look after a running service.
func newOperators(std streams, env lookupEnv) []*cobra.Command {
	commands := operate.Commands(operate.Host{
		In: os.Stdin, Out: std.out, Err: std.err, Env: env,
		Dialer: func(f *pflag.FlagSet) (func(context.Context) (*grpc.ClientConn, error), func() string) {
			c := &dialConfig{}
			dialFlags(f, c)
			return c.dial, func() string { return c.Address }
		},
		ApplyEnv: func(f *pflag.FlagSet) error { return applyEnv(f, env) },
	})
	for _, cmd := range commands {
		withExitCodes(cmd)
	}
	return commands
}

// withExitCodes lets a failure of cmd or of a command below it end the process with its code.
func withExitCodes(cmd *cobra.Command) {
	if inner := cmd.RunE; inner != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			err := inner(cmd, args)
			if failure, is := errors.AsType[*operate.Failure](err); is {
				return &exitError{code: failure.Code, err: err}
			}
			return err
		}
	}
	for _, child := range cmd.Commands() {
		withExitCodes(child)
	}
}

// newCompletion writes what a shell needs to complete command lines.
func newCompletion(std streams) *cobra.Command {
	cmd := &cobra.Command{
		Use: "completion bash|zsh|fish", Short: "Write a script with which a shell completes command lines",
		Long: "completion writes a script for a shell:\n\n" +
			"  bash: source <(leasehold completion bash)\n" +
			"  zsh:  leasehold completion zsh > \"${fpath[1]}/_leasehold\"\n" +
			"  fish: leasehold completion fish > ~/.config/fish/completions/leasehold.fish\n\n" +
			"It completes commands, flags, and the names of queues where a service answers.",
		Args: cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs), ValidArgs: []string{"bash", "zsh", "fish"},
		DisableFlagsInUseLine: true,
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		root := cmd.Root()
		switch args[0] {
		case "bash":
			return failed(root.GenBashCompletionV2(std.out, true))
		case "zsh":
			return failed(root.GenZshCompletion(std.out))
		default:
			return failed(root.GenFishCompletion(std.out, true))
		}
	}
	return cmd
}
