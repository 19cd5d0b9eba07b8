package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/leasehold/leasehold/internal/bench"
	"github.com/leasehold/leasehold/internal/privatepg"
)

// benchConfig is what `leasehold bench` can be told.
type benchConfig struct {
	Only, Format string
	Quick, Check bool
	DatabaseURL  string

	only   *regexp.Regexp
	binary string
	plan   bench.Plan
}

// Values of --format.
const (
	formatTable = "table"
	formatJSON  = "json"
)

func newBench(std streams) *cobra.Command {
	cfg := &benchConfig{}
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure the service against the limits of PostgreSQL and gRPC on this machine",
		Long: "Measures the service, as a process of its own, against what PostgreSQL and gRPC can do\n" +
			"on this machine, and prints a table. The database server is a private one with durable\n" +
			"settings, or that of --database-url, on which it makes databases of its own and drops\n" +
			"them. Progress goes to standard error. docs/performance.md says how to read the table.",
		Args: cobra.NoArgs,
	}
	f := cmd.Flags()
	f.StringVar(&cfg.Only, "only", "", "measure only the workloads whose name matches this regular expression")
	f.BoolVar(&cfg.Quick, "quick", false, "smaller tables and shorter rounds, under 3 minutes in all")
	f.BoolVar(&cfg.Check, "check", false, "exit with code 3 where a figure misses its bound")
	f.StringVar(&cfg.Format, "format", formatTable, "table or json")
	f.StringVar(&cfg.DatabaseURL, "database-url", "", "server to measure, as postgres://user@host/database, whose user may make databases; default: a private one")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		// Not from the environment: a database URL that is set for serve would be the server of
		// the work, and this keeps it busy for an hour.
		if err := cfg.prepare(); err != nil {
			return &exitError{code: exitUsage, err: err}
		}
		log := slog.New(slog.NewTextHandler(std.err, &slog.HandlerOptions{Level: slog.LevelWarn}))
		ctx, stop := untilSignal(cmd.Context(), log)
		defer stop()
		return runBench(ctx, cfg, std, log)
	}
	cmd.AddCommand(newBenchNoop())
	return cmd
}

// prepare checks the configuration, all faults at once.
func (c *benchConfig) prepare() error {
	var faults []error
	var err error
	if c.only, err = regexp.Compile(c.Only); err != nil {
		faults = append(faults, fmt.Errorf("--only: %w", err))
	} else if len(bench.Names(c.only)) == 0 {
		faults = append(faults, fmt.Errorf("--only: no workload matches %q; there are %s", c.Only, strings.Join(bench.Names(nil), ", ")))
	}
	if c.Format != formatTable && c.Format != formatJSON {
		faults = append(faults, fmt.Errorf("--format must be %s or %s, got %q", formatTable, formatJSON, c.Format))
	}
	if c.DatabaseURL != "" {
		if _, err := databaseURL(c.DatabaseURL, "d", ""); err != nil {
			faults = append(faults, err)
		}
	}
	c.plan = bench.Full()
	if c.Quick {
		c.plan = bench.Quick()
	}
	if c.binary, err = os.Executable(); err != nil {
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

// runBench measures and prints. What could be measured is printed also where something failed.
func runBench(ctx context.Context, cfg *benchConfig, std streams, log *slog.Logger) (err error) {
	url, stopServer, err := benchServerURL(ctx, cfg, log)
	if err != nil {
		return failed(err)
	}
	defer func() { err = errors.Join(err, failed(stopServer())) }()
	server, err := newBenchServer(ctx, url)
	if err != nil {
		return failed(err)
	}
	defer func() { err = errors.Join(err, failed(server.close(context.WithoutCancel(ctx)))) }()
	fmt.Fprintln(std.err, "measuring", redact(url))
	fmt.Fprintln(std.err, cfg.plan)
	results, runErr := bench.Run(ctx, bench.Deps{
		Binary: cfg.binary, Server: server, OpenStore: openBenchStore, Progress: std.err,
	}, cfg.plan, cfg.only)
	write := bench.WriteTable
	if cfg.Format == formatJSON {
		write = bench.WriteJSON
	}
	if err := errors.Join(runErr, write(std.out, results)); err != nil {
		return failed(err)
	}
	if below := bench.Below(results); cfg.Check && len(below) > 0 {
		return &exitError{code: exitFound, err: fmt.Errorf("below the bound: %s", strings.Join(below, ", "))}
	}
	return nil
}

// benchSettings are those of a small server for production, not of a test: everything that
// makes commits durable is on, as it is by default. The memory is what a database of this load
// is given, and checkpoints are as rare as is usual, because at the defaults most of the time
// would go into writing each page once more after each checkpoint.
var benchSettings = map[string]string{
	"shared_buffers": "1GB", "max_wal_size": "8GB", "min_wal_size": "1GB", "checkpoint_timeout": "15min",
}

// benchServerURL is the server to measure: the one given, or a private one.
func benchServerURL(ctx context.Context, cfg *benchConfig, log *slog.Logger) (url string, stop func() error, err error) {
	if cfg.DatabaseURL != "" {
		return cfg.DatabaseURL, func() error { return nil }, nil
	}
	pg, err := privatepg.Start(ctx, privatepg.Config{Ephemeral: true, Durable: true, ExtraSettings: benchSettings, Logger: log})
	if err != nil {
		return "", nil, err
	}
	return pg.URL("postgres"), func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopPatience)
		defer cancel()
		return pg.Stop(ctx)
	}, nil
}

// newBenchNoop is the process of the calls that do nothing.
func newBenchNoop() *cobra.Command {
	var ready string
	cmd := &cobra.Command{Use: "noop", Hidden: true, Args: cobra.NoArgs}
	cmd.Flags().StringVar(&ready, "ready-file", "", "file to write the address to")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx, stop := untilSignal(cmd.Context(), slog.New(slog.DiscardHandler))
		defer stop()
		l, err := listen(ctx, "127.0.0.1:0")
		if err != nil {
			return failed(err)
		}
		if err := (readyFile{ready}).write(actualAddress(l), ""); err != nil {
			return failed(err)
		}
		return failed(withHeapFloor(func() error { return bench.ServeNoop(ctx, l) })) // as the service has it
	}
	return cmd
}
