//go:build full

package servertest

import (
	"log/slog"
	"testing"

	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
	"github.com/leasehold/leasehold/server/servertest/remote"
	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/postgres"
	"github.com/leasehold/leasehold/store/storetest"
)

// pooledHarness is the suite's harness whose replicas reach the database through a pooler.
type pooledHarness struct {
	*database
	pooled string
	store  store.Store
}

// Store is storetest.Harness.Store.
func (h *pooledHarness) Store() store.Store { return h.store }

// Replica is storetest.Harness.Replica.
func (h *pooledHarness) Replica(t testing.TB) store.Store { return h.newStore(t) }

func (h *pooledHarness) newStore(t testing.TB) *remote.Store {
	t.Helper()
	st, err := postgres.Open(t.Context(), postgres.Config{
		URL: h.pooled, DirectURL: h.URL, PoolSize: poolSize, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	r, err := remote.New(t.Context(), serve(t, st, withoutEarlySweep{st}).conn, st)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestR40_BehindPgBouncer runs the contract and the random sequences through the API of
// replicas behind a pooler in transaction mode.
func TestR40_BehindPgBouncer(t *testing.T) {
	newPooled := func(t *testing.T) storetest.Harness {
		d := newDatabase(t)
		h := &pooledHarness{database: d, pooled: pgtest.Pooled(t, d.URL)}
		h.store = h.newStore(t)
		return h
	}
	t.Run("contract", func(t *testing.T) {
		t.Parallel()
		storetest.Run(t, newPooled)
	})
	t.Run("random", func(t *testing.T) {
		t.Parallel()
		storetest.RunRandom(t, newPooled)
	})
}
