//go:build full

package postgres_test

import (
	"strings"
	"testing"

	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/postgres"
	"github.com/leasehold/leasehold/store/storetest"
)

// pooledHarness is the harness with Stores that reach the database through the pooler.
type pooledHarness struct {
	*harness
	pooled string
}

func (h *pooledHarness) Replica(t testing.TB) store.Store { return openPooled(t, h.pooled, h.URL) }

func openPooled(t testing.TB, pooled, direct string) *postgres.Store {
	t.Helper()
	s, err := postgres.Open(t.Context(), postgres.Config{URL: pooled, DirectURL: direct, PoolSize: 12})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// TestR40BehindPgBouncer runs the contract and the random sequences behind a pooler in
// transaction mode, with fewer server connections than the Store has.
func TestR40BehindPgBouncer(t *testing.T) {
	newStore := func(t *testing.T) storetest.Harness {
		direct := pgtest.Database(t, migrate)
		pooled := pgtest.Pooled(t, direct)
		h := &pooledHarness{harness: newHarnessOver(t, direct, openPooled(t, pooled, direct)), pooled: pooled}
		return h
	}
	t.Run("contract", func(t *testing.T) { storetest.Run(t, newStore) })
	t.Run("random", func(t *testing.T) { storetest.RunRandom(t, newStore) })
}

// TestR40PoolerWithoutDirectURLIsRefused at start, with the reason.
func TestR40PoolerWithoutDirectURLIsRefused(t *testing.T) {
	pooled := pgtest.Pooled(t, pgtest.Database(t, migrate))
	for name, cfg := range map[string]postgres.Config{
		"none": {URL: pooled}, "pooled as well": {URL: pooled, DirectURL: pooled},
	} {
		s, err := postgres.Open(t.Context(), cfg)
		if err == nil {
			s.Close()
		}
		unsupported, ok := err.(*store.UnsupportedError) //nolint:errorlint // the contract of Open
		if !ok || !strings.Contains(unsupported.Reason, "--direct-database-url") {
			t.Errorf("%s: Open answers %v", name, err)
		}
	}
}
