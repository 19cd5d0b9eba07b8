package storetest

import (
	"testing"
	"time"

	"github.com/leasehold/leasehold/store"
)

// Harness is a Store under test and the few things that a test does behind its back.
// Every method may be called by several goroutines at once.
type Harness interface {
	// Store is the Store under test: its database is empty but for what this test made.
	Store() store.Store
	// Replica is another Store over the same database, as a second replica of the service
	// has one: it shares nothing with the first but the data.
	Replica(t testing.TB) store.Store
	// Age shifts into the past by d every stored time of a job, which is to the job as if
	// d had passed: of the job itself, live or finished (run_at, created_at, finished_at,
	// cancel_requested_at, lease_until, last beat, last change), of its leases, stages,
	// late calls and operator acts, of the idempotency key that it owns, and of the
	// request ids that a lease of it was taken with.
	Age(t testing.TB, id store.JobID, d time.Duration)
	// SetWritable writes the stamp of R35: the service has been able to write heartbeats
	// since the time `since` ago, and the last stamp is `stamp` old.
	SetWritable(t testing.TB, since, stamp time.Duration)
	// SetLeaseNo sets the lease_no of a PENDING job that has had a lease (R39).
	SetLeaseNo(t testing.TB, id store.JobID, no int64)
	// DropPayload removes the stored payload of a PENDING job, as a restore from a partial
	// dump or a retention that went wrong would (R9, R39).
	DropPayload(t testing.TB, id store.JobID)
}

// MakeWritableSince stamps that heartbeats could be written for the last d, up to now, so
// that leases may be ended by their time if d is long enough.
func MakeWritableSince(t testing.TB, h Harness, d time.Duration) {
	t.Helper()
	h.SetWritable(t, d, 0)
}

// MemoryHarness is a Harness over a new Memory with the machine's clock.
func MemoryHarness(testing.TB) Harness { return memoryHarness{NewMemory(nil)} }

type memoryHarness struct{ m *Memory }

// Store is Harness.Store.
func (h memoryHarness) Store() store.Store { return h.m }

// Replica is Harness.Replica.
func (h memoryHarness) Replica(testing.TB) store.Store { return h.m.Replica() }

// Age is Harness.Age.
func (h memoryHarness) Age(_ testing.TB, id store.JobID, d time.Duration) { h.m.Age(id, d) }

// SetWritable is Harness.SetWritable.
func (h memoryHarness) SetWritable(_ testing.TB, since, stamp time.Duration) {
	h.m.SetWritable(since, stamp)
}

// SetLeaseNo is Harness.SetLeaseNo.
func (h memoryHarness) SetLeaseNo(_ testing.TB, id store.JobID, no int64) { h.m.SetLeaseNo(id, no) }

// DropPayload is Harness.DropPayload.
func (h memoryHarness) DropPayload(_ testing.TB, id store.JobID) { h.m.DropPayload(id) }
