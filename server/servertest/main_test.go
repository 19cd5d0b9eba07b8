// Package servertest holds the tests of the service as its clients see it: through real gRPC
// connections to a real server with all its interceptors, over a real PostgreSQL.
//
//   - The contract of the store, and random sequences against the pure model, run through
//     remote.Store: a store.Store whose methods are calls of the API.
//   - Every reason of an error is produced by its real cause, with its details.
//   - Three replicas race for the same jobs.
//   - What a hostile client may send is refused, and nothing is stored.
//
// It has tests only.
package servertest

import (
	"context"
	"flag"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
	"github.com/leasehold/leasehold/store/postgres"
)

// settings are what is not said on the command line.
var settings = map[string]string{
	// Each random sequence costs hundreds of calls with everything that a call passes through.
	"rapid.checks": "20",
	// Tests wait more than they compute: for locks, commits and databases to be made.
	"test.parallel": "6",
}

func TestMain(m *testing.M) {
	for name, value := range settings {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	flag.Parse() // what the command line says comes second, and stays
	os.Exit(pgtest.Run(m))
}

func migrate(ctx context.Context, url string) error {
	return postgres.Migrate(ctx, url, slog.New(slog.DiscardHandler))
}

func to[T any](v T) *T { return &v }

// eventually waits for a condition that something else brings about.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	deadline := time.NewTimer(30 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("never came about: %s", what)
		}
	}
}
