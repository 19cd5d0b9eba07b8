package main

import (
	"github.com/spf13/cobra"
)

func newServe(std streams, env lookupEnv) *cobra.Command {
	cfg := &Config{}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the service on a PostgreSQL database",
		Long: "Runs one replica of the service on a PostgreSQL database (14 or later), in the\n" +
			"schema leasehold. It waits for a database that is not up yet. SIGTERM or SIGINT\n" +
			"drains it; a second one ends it at once.",
		Args: cobra.NoArgs,
	}
	serviceFlags(cmd.Flags(), cfg, false)
	databaseFlags(cmd.Flags(), cfg)
	cmd.Flags().StringVar(&cfg.Migrate, "migrate", migrateAuto, "auto: bring the schema up to date at start; check: refuse to start where it is not")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := configured(cmd.Flags(), cfg, env, cfg.ValidateServe); err != nil {
			return err
		}
		log := newLogger(std.err, cfg)
		ctx, stop := untilSignal(cmd.Context(), log)
		defer stop()
		return failed(newService(cfg, log).run(ctx))
	}
	return cmd
}
