package storetest

import (
	"context"
	"crypto/rand"
	mathrand "math/rand/v2"
	"sync"
	"time"

	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/storetest/model"
)

// Clock tells the time to a Memory, as the database's clock does to a Store.
type Clock interface{ Now() time.Time }

// ManualClock stands still until it is advanced. It is safe for concurrent use.
type ManualClock struct {
	mu  sync.Mutex
	now time.Time
}

// NewManualClock makes a clock that stands at a time.
func NewManualClock(now time.Time) *ManualClock { return &ManualClock{now: now} }

// Now is the time that the clock stands at.
func (c *ManualClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Advance moves the clock ahead.
func (c *ManualClock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

type systemClock struct{}

// Now is Clock.Now.
func (systemClock) Now() time.Time { return time.Now() }

// Memory is a Store that keeps everything in memory and decides by the model. One lock
// makes every call one statement. It is safe for concurrent use.
type Memory struct {
	db *memoryDB
	// hints are the listeners of this replica: a Hint goes to those of the others.
	mu    sync.Mutex
	hints map[chan []string]struct{}
}

var _ store.Store = (*Memory)(nil)

// memoryDB is the database that replicas share.
type memoryDB struct {
	mu       sync.Mutex
	clock    Clock
	key      []byte
	queues   map[string]*store.Queue
	jobs     map[store.JobID]*memoryJob
	order    []store.JobID // every job, ascending
	pending  map[string]map[store.JobID]*memoryJob
	keys     map[queueKey]memoryKey
	requests map[string]*memoryRequest
	lastID   store.JobID
	replicas []*Memory

	alwaysWritable bool
	since, stamp   time.Time
	sweptAt        time.Time
}

type memoryJob struct {
	model.State
	acts []store.OperatorAct
}

type queueKey struct{ queue, key string }

type memoryKey struct {
	job    store.JobID
	digest string
}

type memoryRequest struct {
	arguments string
	leases    []store.LeaseRef
	at        time.Time
	replayed  bool
}

// requestMemory is how long a request id is remembered (R12).
const requestMemory = 24 * time.Hour

// NewMemory makes an empty Memory. A nil clock is the machine's.
func NewMemory(clock Clock) *Memory {
	if clock == nil {
		clock = systemClock{}
	}
	db := &memoryDB{
		clock: clock, key: make([]byte, 32),
		queues: map[string]*store.Queue{}, jobs: map[store.JobID]*memoryJob{},
		pending: map[string]map[store.JobID]*memoryJob{}, keys: map[queueKey]memoryKey{},
		requests: map[string]*memoryRequest{},
	}
	_, _ = rand.Read(db.key) // it never fails
	db.since, db.stamp = db.now(), db.now()
	return db.replica()
}

// Replica is another Store over the same data.
func (m *Memory) Replica() *Memory { return m.db.replica() }

func (d *memoryDB) replica() *Memory {
	m := &Memory{db: d, hints: map[chan []string]struct{}{}}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.replicas = append(d.replicas, m)
	return m
}

// AlwaysWritable makes every stamp of R35 good, for tests that advance a clock by more
// than the stamping loop of a real service would ever miss.
func (m *Memory) AlwaysWritable() {
	m.db.mu.Lock()
	defer m.db.mu.Unlock()
	m.db.alwaysWritable = true
}

// Age is Harness.Age.
func (m *Memory) Age(id store.JobID, d time.Duration) {
	m.db.mu.Lock()
	defer m.db.mu.Unlock()
	j, ok := m.db.jobs[id]
	if !ok {
		return
	}
	j.State = j.Age(d)
	for i := range j.acts {
		j.acts[i].At = j.acts[i].At.Add(-d)
	}
	for _, r := range m.db.requests {
		for _, l := range r.leases {
			if l.JobID == id {
				r.at = r.at.Add(-d)
				break
			}
		}
	}
}

// SetWritable is Harness.SetWritable.
func (m *Memory) SetWritable(since, stamp time.Duration) {
	m.db.mu.Lock()
	defer m.db.mu.Unlock()
	now := m.db.now()
	m.db.since, m.db.stamp = now.Add(-since), now.Add(-stamp)
}

// SetLeaseNo is Harness.SetLeaseNo.
func (m *Memory) SetLeaseNo(id store.JobID, no int64) {
	m.db.mu.Lock()
	defer m.db.mu.Unlock()
	m.db.jobs[id].LeaseNo = no
}

// DropPayload is Harness.DropPayload.
func (m *Memory) DropPayload(id store.JobID) {
	m.db.mu.Lock()
	defer m.db.mu.Unlock()
	m.db.jobs[id].Undeliverable = true
}

// now is truncated to what PostgreSQL keeps.
func (d *memoryDB) now() time.Time { return d.clock.Now().Truncate(time.Microsecond) }

// begin takes the lock and the time behind it: a time read before the wait for the lock
// would let a call act in the past.
func (d *memoryDB) begin(ctx context.Context) (now time.Time, err error) {
	if err := ctx.Err(); err != nil {
		return time.Time{}, err
	}
	d.mu.Lock()
	return d.now(), nil
}

// step moves a job by the model and draws what is left to chance.
func (d *memoryDB) step(j *memoryJob, c model.Call, now time.Time) model.Outcome {
	s, o := model.Step(j.State, d.request(j.State, c, now), now)
	if w := s.RunAt; !w.Exact() {
		at := w.From.Add(time.Duration(mathrand.Int64N(int64(w.To.Sub(w.From)) + 1))).Truncate(time.Microsecond)
		s = s.Settle(at)
	}
	if s.Phase == store.Pending {
		o.RunAt = s.RunAt
	}
	d.put(j, s)
	return o
}

func (d *memoryDB) request(s model.State, c model.Call, now time.Time) model.Request {
	r := model.Request{Call: c, Outage: d.outage(s, now)}
	if s.Spec == nil {
		return r
	}
	if q, ok := d.queues[s.Spec.Queue]; ok {
		r.Queue = *q
	}
	return r
}

// outage is R35: nobody is blamed for silence while the service could not hear.
func (d *memoryDB) outage(s model.State, now time.Time) bool {
	l, ok := s.Latest()
	if !ok || d.alwaysWritable {
		return false
	}
	return now.Sub(d.stamp) >= 3*time.Second || now.Sub(d.since) < max(5*time.Second, l.Duration/2)
}

// put stores a job's state and keeps the index of waiting jobs.
func (d *memoryDB) put(j *memoryJob, s model.State) {
	j.State = s
	q := d.pending[s.Spec.Queue]
	if s.Phase != store.Pending {
		delete(q, s.ID)
		return
	}
	if q == nil {
		q = map[store.JobID]*memoryJob{}
		d.pending[s.Spec.Queue] = q
	}
	q[s.ID] = j
}

// ownsKey tells whether the job's idempotency key is still its own and alive (R33).
func (d *memoryDB) ownsKey(j *memoryJob, now time.Time) bool {
	if j.Spec.IdempotencyKey == nil {
		return false
	}
	k, ok := d.keys[queueKey{j.Spec.Queue, *j.Spec.IdempotencyKey}]
	if !ok || k.job != j.ID {
		return false
	}
	return j.FinishedAt == nil || now.Before(j.FinishedAt.Add(j.Limits().IdempotencyRetention))
}
