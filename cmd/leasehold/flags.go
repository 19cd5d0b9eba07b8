package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/leasehold/leasehold/server"
)

const envPrefix = "LEASEHOLD_"

// serviceFlags adds what serve and dev have in common. autoCreate is the default of
// --auto-create-queues.
func serviceFlags(f *pflag.FlagSet, c *Config, autoCreate bool) {
	f.StringVar(&c.Listen, "listen", "127.0.0.1:7070", "address of gRPC: host:port (port 0: a free one) or unix:PATH")
	f.StringVar(&c.HTTP, "http", "127.0.0.1:7071", "address of /healthz, /readyz and /metrics: host:port or unix:PATH")
	f.IntVar(&c.PoolSize, "pool-size", 8, "connections to the database, 4..1000; one more listens for hints")
	f.DurationVar(&c.WatcherInterval, "watcher-interval", server.DefaultWatcherInterval, "time between sweeps for leases that ran out, 100ms..1h")
	f.DurationVar(&c.RetainFacts, "retain-facts", 0, "how long finished jobs and their leases are kept, at least 24h; 0: for ever")
	f.DurationVar(&c.RetainPayloads, "retain-payloads", 0, "how long payloads and results of finished jobs are kept, at least 24h; 0: as long as the facts")
	f.DurationVar(&c.DrainTimeout, "drain-timeout", 25*time.Second, "how long calls under way may take at shutdown, 0..1h")
	f.DurationVar(&c.MaxConnectionAge, "max-connection-age", 5*time.Minute, "after how long clients are asked to connect anew, which spreads them over new replicas, 1s..24h; 0: never")
	f.BoolVar(&c.AutoCreateQueues, "auto-create-queues", autoCreate, "make unknown queues instead of refusing them")
	f.StringVar(&c.ReadyFile, "ready-file", "", "file to write when the service is ready, with the actual addresses; removed at exit")
	f.StringVar(&c.LogLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&c.LogFormat, "log-format", logText, "text or json")
	securityFlags(f, &c.Security)
}

// databaseFlags adds what says which database.
func databaseFlags(f *pflag.FlagSet, c *Config) {
	f.StringVar(&c.DatabaseURL, "database-url", "", "PostgreSQL to use, as postgres://user@host/database; passwords belong into --database-url-file or PGPASSFILE")
	f.StringVar(&c.DatabaseURLFile, "database-url-file", "", "file that holds the database URL")
	f.StringVar(&c.DirectDatabaseURL, "direct-database-url", "", "the server itself, where the database URL leads to a pooler")
}

// envName is the environment variable of a flag.
func envName(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// applyEnv sets the flags that were not given from the environment. An empty variable counts
// as unset. All faults are joined.
func applyEnv(f *pflag.FlagSet, env lookupEnv) error {
	var faults []error
	f.VisitAll(func(flag *pflag.Flag) {
		value, set := env(envName(flag.Name))
		if flag.Changed || !set || value == "" || flag.Name == "help" {
			return
		}
		if err := f.Set(flag.Name, value); err != nil {
			faults = append(faults, fmt.Errorf("%s: %q is no %s", envName(flag.Name), value, flag.Value.Type()))
		}
	})
	return errors.Join(faults...)
}

// configured fills in the environment and files, checks, and turns every fault, all at
// once, into wrong usage.
func configured(f *pflag.FlagSet, c *Config, env lookupEnv, validate func() error) error {
	fromEnv := applyEnv(f, env)
	fromFile := c.Load()
	err := errors.Join(fromEnv, fromFile, validate())
	if err == nil {
		return nil
	}
	lines := strings.Split(err.Error(), "\n")
	return &exitError{code: exitUsage, err: errors.New("bad configuration:\n  " + strings.Join(lines, "\n  "))}
}
