package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

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
		Long: "Brings the schema of a database to the version of this binary, and gives the roles\n" +
			"leasehold_producer, leasehold_worker, leasehold_reader and leasehold_service their\n" +
			"rights in it; roles that are not there are made where the user may. Several may run\n" +
			"at once: they take turns. With --check nothing is changed, and the exit code is 3\n" +
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
	if _, err := fmt.Fprintf(std.out, done, postgres.SchemaVersion()); err != nil {
		return err
	}
	return grantRoles(ctx, cfg, std)
}

// grantRoles is tried each time: roles that were missing when the schema was made may have been
// made since. The service itself needs none of them.
func grantRoles(ctx context.Context, cfg *Config, std streams) error {
	missing, err := postgres.GrantRoles(ctx, cfg.directURL())
	if err != nil || len(missing) == 0 {
		return err
	}
	_, err = fmt.Fprintf(std.out, "missing roles: %s; this user may not make them. Let one who may do it, then run this again\n", strings.Join(missing, ", "))
	return err
}
