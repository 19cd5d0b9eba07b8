package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/leasehold/leasehold/internal/privatepg"
)

// stopPatience bounds the end of the private PostgreSQL.
const stopPatience = 30 * time.Second

func newDev(std streams, env lookupEnv) *cobra.Command {
	cfg := &Config{Migrate: migrateAuto}
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run the service with a private PostgreSQL of its own, for development",
		Long: "Runs the service with a PostgreSQL server of its own, from installed binaries of\n" +
			"version 14 or later. Its data is kept in --data-dir; any other server on this\n" +
			"machine is left alone. Prints five grpcurl lines to begin with.",
		Args: cobra.NoArgs,
	}
	serviceFlags(cmd.Flags(), cfg, true)
	cmd.Flags().StringVar(&cfg.DataDir, "data-dir", "", "where PostgreSQL keeps its data (default $XDG_DATA_HOME/leasehold/dev, as root /var/lib/leasehold/dev)")
	cmd.Flags().BoolVar(&cfg.Ephemeral, "ephemeral", false, "keep the data in a temporary folder that is removed at exit")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := configured(cmd.Flags(), cfg, env, cfg.ValidateDev); err != nil {
			return err
		}
		log := newLogger(std.err, cfg)
		ctx, stop := untilSignal(cmd.Context(), log)
		defer stop()
		err := runDev(ctx, cfg, std, env, log)
		if err != nil && ctx.Err() != nil && errors.Is(err, context.Canceled) {
			return nil // told to end while PostgreSQL started
		}
		return failed(err)
	}
	return cmd
}

func runDev(ctx context.Context, cfg *Config, std streams, env lookupEnv, log *slog.Logger) (err error) {
	if cfg.DataDir == "" && !cfg.Ephemeral {
		if cfg.DataDir, err = defaultDataDir(env, os.Getuid()); err != nil {
			return err
		}
	}
	pg, err := privatepg.Start(ctx, privatepg.Config{
		DataDir: cfg.DataDir, Ephemeral: cfg.Ephemeral, SocketOnly: true, Logger: log,
	})
	if err != nil {
		return err
	}
	defer func() {
		stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopPatience)
		defer cancel()
		err = errors.Join(err, pg.Stop(stopping))
	}()
	cfg.DatabaseURL = pg.URL("postgres")
	s := newService(cfg, log)
	s.onReady = func(grpc, http string) { printTour(std.out, grpc, http) }
	s.broken = brokenBy(ctx, pg)
	return s.run(ctx)
}

// brokenBy tells when the private server ends by itself.
func brokenBy(ctx context.Context, pg *privatepg.Server) <-chan error {
	broken := make(chan error, 1)
	ended := pg.Done()
	go func() {
		select {
		case <-ended:
			broken <- fmt.Errorf("the private PostgreSQL has ended, its log is %s", pg.LogFile())
		case <-ctx.Done():
		}
	}()
	return broken
}
