package postgres_test

import (
	"context"
	"log/slog"
	"os"
	"testing"

	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/postgres"
	"github.com/leasehold/leasehold/store/postgres/backdoor"
	"github.com/leasehold/leasehold/store/storetest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Run(m)) }

func migrate(ctx context.Context, url string) error {
	return postgres.Migrate(ctx, url, slog.New(slog.DiscardHandler))
}

// harness is a Store and the way behind its back.
type harness struct {
	*backdoor.Database
	store *postgres.Store
}

var _ storetest.Harness = (*harness)(nil)

func newHarness(t testing.TB) *harness {
	t.Helper()
	return newHarnessOn(t, pgtest.Database(t, migrate))
}

func newHarnessOver(t testing.TB, url string, s *postgres.Store) *harness {
	t.Helper()
	return &harness{Database: backdoor.Open(t, url), store: s}
}

func openStore(t testing.TB, url string) *postgres.Store {
	t.Helper()
	s, err := postgres.Open(t.Context(), postgres.Config{URL: url, PoolSize: 12})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func (h *harness) Store() store.Store               { return h.store }
func (h *harness) Replica(t testing.TB) store.Store { return openStore(t, h.URL) }

// TestContract has the rights of the role leasehold_service, and none of an owner: every
// statement of the contract must do with them.
func TestContract(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) storetest.Harness { return newServiceHarness(t) })
}

// TestRandomSequences compares calls at random with the pure model, step by step.
func TestRandomSequences(t *testing.T) {
	t.Parallel()
	storetest.RunRandom(t, func(t *testing.T) storetest.Harness { return newHarness(t) })
}
