package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"regexp"

	"github.com/spf13/cobra"

	"github.com/leasehold/leasehold/internal/conformance"
)

// conformanceFlags is what `leasehold conformance` can be told.
type conformanceFlags struct {
	Rule, Format string
	Verbose      bool
	check        conformance.Config
}

func newConformance(std streams) *cobra.Command {
	c := &conformanceFlags{}
	cmd := &cobra.Command{
		Use:   "conformance [flags] -- COMMAND [ARGUMENT…]",
		Short: "Judge a worker program by what it does when things go wrong",
		Long: "Runs COMMAND, a worker in any language, against a service that drops answers, delays\n" +
			"heartbeats, takes leases away, cancels, refuses and drains, and judges it by the history\n" +
			"of its calls. It runs once for each scenario, with this in its environment:\n\n" +
			"  LEASEHOLD_ADDRESS  host:port of the service, in plain text\n" +
			"  LEASEHOLD_QUEUE    queue to lease from\n" +
			"  LEASEHOLD_SLOTS    most leases that it may hold at once\n\n" +
			"The payload of each job is JSON, {\"seconds\": N}: its work is to take that long, and then\n" +
			"to be completed. No database is needed. docs/conformance.md explains each rule.\n\n" +
			"Exit codes: 0 every rule passed; 3 one failed, or could not be seen; 1 the command cannot\n" +
			"be run; 2 wrong usage.",
		Args: cobra.ArbitraryArgs,
	}
	f := cmd.Flags()
	f.StringVar(&c.Rule, "rule", "", "judge only the rules whose name matches this regular expression")
	f.StringVar(&c.Format, "format", formatTable, "table or json")
	f.DurationVar(&c.check.Grace, "grace", conformance.DefaultGrace, "how long the worker may take to end after SIGTERM, 1s..10m")
	f.IntVar(&c.check.Parallel, "parallel", conformance.DefaultParallel, "scenarios that run side by side, 1..100, each with a worker of its own")
	f.BoolVar(&c.Verbose, "verbose", false, "show what the worker prints")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c.check.Command = args
		if err := c.prepare(std.err); err != nil {
			return &exitError{code: exitUsage, err: err}
		}
		ctx, stop := untilSignal(cmd.Context(), slog.New(slog.NewTextHandler(std.err, &slog.HandlerOptions{Level: slog.LevelWarn})))
		defer stop()
		return c.run(ctx, std)
	}
	return cmd
}

// prepare checks what was given, all faults at once.
func (c *conformanceFlags) prepare(stderr io.Writer) error {
	var faults []error
	only, err := regexp.Compile(c.Rule)
	if err != nil {
		faults = append(faults, fmt.Errorf("--rule: %w", err))
	}
	c.check.Rules = only
	if c.Format != formatTable && c.Format != formatJSON {
		faults = append(faults, fmt.Errorf("--format must be %s or %s, got %q", formatTable, formatJSON, c.Format))
	}
	c.check.Progress = stderr
	if c.Verbose {
		c.check.Output = stderr
	}
	return errors.Join(append(faults, c.check.Validate())...)
}

func (c *conformanceFlags) run(ctx context.Context, std streams) error {
	report, err := conformance.Run(ctx, c.check)
	if err != nil {
		return failed(err)
	}
	write := report.WriteTable
	if c.Format == formatJSON {
		write = report.WriteJSON
	}
	if err := write(std.out); err != nil {
		return failed(err)
	}
	if !report.Passed() {
		return &exitError{code: exitFound, err: errors.New("the worker does not pass: " + report.Summary())}
	}
	return nil
}
