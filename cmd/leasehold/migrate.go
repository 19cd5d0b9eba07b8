package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/postgres"
)

func newMigrate(std streams, env lookupEnv) *cobra.Command {
	cfg := &Config{}
	var check bool
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Bring the schema of a database up to date",
		Long: "Brings the schema of a database to the version of this binary. Several may run at\n" +
			"once: they take turns. With --check nothing is changed, and the exit code is 3\n" +
			"where the schema is not of this version.",
		Args: cobra.NoArgs,
	}
	databaseFlags(cmd.Flags(), cfg)
	cmd.Flags().BoolVar(&check, "check", false, "only say whether the schema is of this binary's version; exit code 3 if not")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		validate := func() error {
			if cfg.DatabaseURL == "" {
				return errors.New("--database-url (or --database-url-file) is required")
			}
			return cfg.database().Validate()
		}
		if err := configured(cmd.Flags(), cfg, env, validate); err != nil {
			return err
		}
		log := slog.New(slog.NewTextHandler(std.err, nil))
		ctx, stop := untilSignal(cmd.Context(), log)
		defer stop()
		if check {
			return checkSchema(ctx, cfg, std)
		}
		return failed(migrate(ctx, cfg, std, log))
	}
	return cmd
}

func checkSchema(ctx context.Context, cfg *Config, std streams) error {
	err := postgres.CheckSchema(ctx, cfg.directURL())
	if _, is := errors.AsType[*store.UnsupportedError](err); is {
		return &exitError{code: exitFound, err: err}
	}
	if err != nil {
		return failed(err)
	}
	_, err = fmt.Fprintf(std.out, "the schema is at version %d, as this binary needs it\n", postgres.SchemaVersion())
	return failed(err)
}

func migrate(ctx context.Context, cfg *Config, std streams, log *slog.Logger) error {
	// Only a schema that is older gives an error here that migrating mends, and what it
	// does not mend Migrate reports again.
	before := postgres.CheckSchema(ctx, cfg.directURL())
	if err := postgres.Migrate(ctx, cfg.directURL(), log); err != nil {
		return err
	}
	done := "migrated the schema to version %d\n"
	if before == nil {
		done = "nothing to do: the schema is at version %d\n"
	}
	_, err := fmt.Fprintf(std.out, done, postgres.SchemaVersion())
	return err
}
