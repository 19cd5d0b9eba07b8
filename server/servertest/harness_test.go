package servertest

import (
	"testing"

	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
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

// Store is storetest.Harness.Store.
func (h *remoteHarness) Store() store.Store { return h.store }

// Replica is storetest.Harness.Replica.
func (h *remoteHarness) Replica(t testing.TB) store.Store { return newRemoteStore(t, h.URL) }
