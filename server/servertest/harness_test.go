package servertest

import (
	"context"
	"testing"

	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
	"github.com/leasehold/leasehold/server/servertest/remote"
	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/postgres/backdoor"
	"github.com/leasehold/leasehold/store/storetest"
)

// database is a database of a test, and the way behind the back of the service.
type database struct{ *backdoor.Database }

func newDatabase(t testing.TB) *database {
	t.Helper()
	return openDatabase(t, pgtest.Database(t, migrate))
}

func openDatabase(t testing.TB, url string) *database {
	t.Helper()
	return &database{backdoor.Open(t, url)}
}

// remoteHarness is the suite's harness whose Stores are replicas of the service.
type remoteHarness struct {
	*database
	store store.Store
}

var _ storetest.Harness = (*remoteHarness)(nil)

func newRemoteHarness(t testing.TB) *remoteHarness {
	t.Helper()
	d := newDatabase(t)
	return &remoteHarness{database: d, store: newRemoteStore(t, d.URL)}
}

// newRemoteStore starts a replica and connects to it.
func newRemoteStore(t testing.TB, url string) *remote.Store {
	t.Helper()
	st := openStore(t, url)
	r, err := remote.New(t.Context(), serve(t, st, withoutEarlySweep{st}).conn, st)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// withoutEarlySweep keeps an acquire that finds nothing from sweeping its queues (R38),
// which the contract of a Store does not have: when a lease ends must be the test's choice.
type withoutEarlySweep struct{ store.Store }

func (withoutEarlySweep) SweepPage(context.Context, store.JobID, int, []string) (store.Swept, error) {
	return store.Swept{}, nil
}

// Store is storetest.Harness.Store.
func (h *remoteHarness) Store() store.Store { return h.store }

// Replica is storetest.Harness.Replica.
func (h *remoteHarness) Replica(t testing.TB) store.Store { return newRemoteStore(t, h.URL) }
