package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/leasehold/leasehold/store/postgres"
	"github.com/leasehold/leasehold/store/postgres/imports"
)

const (
	defaultImportBatch = 1000
	maxImportBatch     = 10_000
	// progressPause is the least time between two lines of progress.
	progressPause = time.Second
)

func newImport(std streams, env lookupEnv) *cobra.Command {
	cfg := &Config{}
	o := imports.Options{}
	var path string
	cmd := &cobra.Command{
		Use:   "import",
		Short: "Move the rows of an existing jobs table into Leasehold",
		Long: "Moves the rows of a jobs table of the same database into Leasehold, as a mapping file\n" +
			"says, in batches. It may be stopped and run again at any time: no row is lost, and none\n" +
			"is taken twice. Rows that cannot be taken are named and stay where they are. Exit code 3\n" +
			"where rows are left.",
		Args: cobra.NoArgs,
	}
	databaseFlags(cmd.Flags(), cfg)
	cmd.Flags().StringVar(&path, "mapping", "", "YAML file that says what the rows are as jobs; required")
	cmd.Flags().IntVar(&o.Batch, "batch", defaultImportBatch, "rows of one transaction, 1..10000")
	cmd.Flags().BoolVar(&o.DryRun, "dry-run", false, "check every row and say what would be done, without changing anything")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var mapping *imports.Mapping
		validate := func() (err error) {
			mapping, err = readMapping(path)
			return errors.Join(err, importFaults(cfg, o.Batch))
		}
		if err := configured(cmd.Flags(), cfg, env, validate); err != nil {
			return err
		}
		ctx, stop := untilSignal(cmd.Context(), slog.New(slog.NewTextHandler(std.err, nil)))
		defer stop()
		return importTable(ctx, cfg, mapping, o, std)
	}
	return cmd
}

func readMapping(path string) (*imports.Mapping, error) {
	if path == "" {
		return nil, errors.New("--mapping is required")
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("--mapping: %w", err)
	}
	return imports.Parse(text)
}

func importFaults(cfg *Config, batch int) error {
	var faults []error
	if cfg.DatabaseURL == "" {
		faults = append(faults, errors.New("--database-url (or --database-url-file) is required"))
	} else {
		faults = append(faults, cfg.database().Validate())
	}
	if batch < 1 || batch > maxImportBatch {
		faults = append(faults, fmt.Errorf("--batch must be 1..%d, got %d", maxImportBatch, batch))
	}
	return errors.Join(faults...)
}

func importTable(ctx context.Context, cfg *Config, m *imports.Mapping, o imports.Options, std streams) error {
	if err := postgres.CheckSchema(ctx, cfg.directURL()); err != nil {
		return failed(err)
	}
	conn, err := pgx.Connect(ctx, cfg.directURL())
	if err != nil {
		return failed(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // what was to be kept is committed
	p := &progress{out: std.err}
	o.Progress, o.Left = p.tell, p.left
	report, err := imports.Run(ctx, conn, m, o)
	if told := tellImport(std.out, o.DryRun, &report); err == nil {
		err = told
	}
	switch {
	case ctx.Err() != nil:
		return failed(errors.New("stopped: run it again to go on"))
	case err != nil:
		return failed(fmt.Errorf("%w; what is counted above is done: run it again to go on", err))
	case report.Unfinished():
		return &exitError{code: exitFound, err: errors.New("rows are left: mend or finish those named above, and run it again")}
	}
	return nil
}

// tellImport sums up.
func tellImport(out io.Writer, dry bool, r *imports.Report) error {
	done := "imported"
	if dry {
		done = "would import"
	}
	taken := 0
	for _, state := range slices.Sorted(maps.Keys(r.Taken)) {
		taken += r.Taken[state]
		if _, err := fmt.Fprintf(out, "%s %d as %s\n", done, r.Taken[state], state); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(out, "%s %d of %d rows; left: %d skipped, %d leased, %d locked, %d bad\n",
		done, taken, r.Total, r.Skipped, r.Leased, r.Locked, r.Bad)
	return err
}

// progress tells how far an import is, at most once a second, and which rows it leaves. That
// nobody can read it any more does not stop an import.
type progress struct {
	out  io.Writer
	told time.Time
}

func (p *progress) tell(r imports.Report) {
	if time.Since(p.told) < progressPause && r.Seen < r.Total {
		return
	}
	p.told = time.Now()
	_, _ = fmt.Fprintf(p.out, "%d of %d rows\n", r.Seen, r.Total)
}

func (p *progress) left(key, why string) { _, _ = fmt.Fprintf(p.out, "row %s is left: %s\n", key, why) }
