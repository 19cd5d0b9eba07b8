package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/leasehold/leasehold/internal/privatepg"
	"github.com/leasehold/leasehold/store"
)

// The exit codes of the binary.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
	exitFound  = 3
)

// streams are where a command writes: results to out, everything else to err.
type streams struct{ out, err io.Writer }

// lookupEnv is os.LookupEnv, or a test's.
type lookupEnv func(name string) (string, bool)

// exitError ends the process with a code. A code without an error has been explained
// already.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

func failed(err error) error {
	if err == nil {
		return nil
	}
	return &exitError{code: exitFailed, err: err}
}

// run runs one command line and returns the code to exit with.
func run(ctx context.Context, args []string, std streams, env lookupEnv) int {
	root := newRoot(std, env)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitDone
	}
	// What cobra itself refuses is wrong usage: commands return an exitError.
	code := exitUsage
	if exit, is := errors.AsType[*exitError](err); is {
		code = exit.code
	}
	fmt.Fprintln(std.err, "leasehold:", explain(err))
	return code
}

func newRoot(std streams, env lookupEnv) *cobra.Command {
	root := &cobra.Command{
		Use:   "leasehold",
		Short: "Leases jobs that are kept in PostgreSQL to workers, over gRPC",
		Long: "Leasehold leases jobs that are kept in PostgreSQL to workers, over gRPC.\n\n" +
			"Every flag can be given by the environment: LEASEHOLD_ and its name, as in\n" +
			"LEASEHOLD_POOL_SIZE for --pool-size. A flag wins over the environment.\n\n" +
			"Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 3 a check found something.",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return errors.Join(cmd.Help(), errors.New("a command is needed"))
		},
	}
	root.SetOut(std.out)
	root.SetErr(std.err)
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(newServe(std, env), newDev(std, env), newSidecar(std, env), newMigrate(std, env), newImport(std, env), newProto(std), newBench(std), newConformance(std), newToken(std), newVersion(std))
	root.AddCommand(append(newOperators(std, env), newCompletion(std))...)
	return root
}

// explain is the text of an error for people at a terminal, with the cause that the store
// keeps from clients. Neither holds a password: the driver's texts leave it out.
func explain(err error) string {
	if away, is := errors.AsType[*store.UnavailableError](err); is && away.Cause != nil {
		return fmt.Sprintf("%s: %s", err, away.Cause)
	}
	if _, is := errors.AsType[*privatepg.NotFoundError](err); is {
		return err.Error() + "; or serve a database that exists: leasehold serve --database-url …"
	}
	return err.Error()
}
