package postgres

import (
	"sync"
	"time"
)

// The claim does not age (R48). Jobs of one queue and priority are claimed in the order of
// (run_at, id), and every claim leaves dead entries at the front of the index. While somebody
// holds a snapshot nothing removes them, and a scan from the front passes all of them
// (measured: throughput fell to a fifth in 24 s). So each replica remembers, per queue and
// priority, a mark: no job that is to be claimed lies before it, and scans begin there.
//
// Why nothing can lie before a mark:
//
//   - A claim moves it up to the first job that its snapshot sees as PENDING, locked or not.
//     Jobs that others are claiming at the moment count as PENDING until they commit.
//   - What that snapshot could not see yet is what an open transaction will commit. Every
//     statement that puts a job into a position reads the clock for it after its transaction
//     has its xid, and never puts it before that clock. So the mark stays behind the
//     horizon: a time at which some transaction took an xid, all transactions with a lower
//     one having ended by now. Retries, releases, expiries and RetryJobs put jobs at the
//     clock, too, and need no exception.
//
// A job can still come to lie before a mark: by a clock that was set back, by a failover to a
// server whose clock is behind, by an UPDATE by hand. Scans from the start find it: one that
// finds nothing behind its marks looks again from the start, and one a second per queue does
// anyway, as far as such scans take no more than 5 % of one connection's time.
type marks struct {
	mu      sync.Mutex
	marks   map[markKey]*mark
	horizon time.Time
	noted   *note // waits to become the horizon
	clock   time.Time
	// generation changes when all marks are forgotten: what a statement found that began
	// before rests on a horizon that may be wrong.
	generation uint64

	scanned map[string]time.Time // by queue: when last from the start
	rest    time.Time            // no further scan from the start before
}

type markKey struct {
	queue    string
	priority int
}

// position is a place in the order of one queue and priority.
type position struct {
	runAt time.Time
	id    int64
}

func (p position) before(q position) bool {
	return p.runAt.Before(q.runAt) || p.runAt.Equal(q.runAt) && p.id < q.id
}

// mark is where scans begin. The epoch changes where it is lowered: what a statement found
// that began before must not raise it again.
type mark struct {
	at    position
	epoch uint64
}

// note is a clock reading, and the xid that was taken after it.
type note struct {
	clock time.Time
	xid   int64
}

const (
	priorities = 9
	// rescanInterval is the least time between two scans of one queue from its start.
	rescanInterval = time.Second
	// rescanShare is 1/20 of one connection's time.
	rescanShare = 20
	// maxMarks bounds the memory for queues that come and go.
	maxMarks = 50_000
)

// origin lies before every job: jobs_times allows no earlier run_at.
var origin = position{runAt: time.Date(1900, 1, 1, 0, 0, 0, 0, time.UTC)}

func newMarks() *marks {
	return &marks{marks: map[markKey]*mark{}, scanned: map[string]time.Time{}}
}

// markView are the marks of some queues as one statement uses them, nine for each queue.
type markView struct {
	queues     []string
	runAt      []time.Time
	ids        []int64
	epochs     []uint64
	horizon    time.Time
	generation uint64
	fromStart  bool
	began      time.Time
	// any tells that at least one mark is behind the origin.
	any bool
}

// view is what a statement is to begin with; from the start where that is asked for, or due.
func (m *marks) view(queues []string, fromStart bool) *markView {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := &markView{
		queues: queues, horizon: m.horizon, generation: m.generation, began: time.Now(),
		runAt: make([]time.Time, 0, priorities*len(queues)), ids: make([]int64, 0, priorities*len(queues)),
		epochs: make([]uint64, 0, priorities*len(queues)),
	}
	v.fromStart = fromStart || m.due(v.began, queues)
	for _, q := range queues {
		for p := 1; p <= priorities; p++ {
			at, epoch := origin, uint64(0)
			if k := m.marks[markKey{q, p}]; k != nil {
				epoch, v.any = k.epoch, true
				if !v.fromStart {
					at = k.at
				}
			}
			v.runAt, v.ids, v.epochs = append(v.runAt, at.runAt), append(v.ids, at.id), append(v.epochs, epoch)
		}
	}
	return v
}

// due tells whether queues are to be scanned from the start now. The caller holds the lock.
func (m *marks) due(now time.Time, queues []string) bool {
	if now.Before(m.rest) {
		return false
	}
	for _, q := range queues {
		if at, scanned := m.scanned[q]; scanned && now.Sub(at) >= rescanInterval {
			return true
		}
	}
	return false
}

// mayRescan tells whether a scan from the start may follow one that found nothing.
func (m *marks) mayRescan(v *markView) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return v.any && !v.fromStart && !time.Now().Before(m.rest)
}

// scannedFromStart accounts for a scan from the start that is over.
func (m *marks) scannedFromStart(v *markView) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	m.rest = now.Add(rescanShare * now.Sub(v.began))
	for _, q := range v.queues {
		m.scanned[q] = now
	}
}

// found notes the first PENDING job that the statement of v saw, of the queue at ord and a
// priority. A job after the horizon may have others before it that are yet to be committed.
func (m *marks) found(v *markView, ord, priority int, first position) {
	if v.horizon.IsZero() {
		return
	}
	if edge := (position{runAt: v.horizon}); edge.before(first) {
		first = edge
	}
	i, key := ord*priorities+priority-1, markKey{v.queues[ord], priority}
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.marks[key]
	switch {
	case v.generation != m.generation:
	case k == nil:
		if len(m.marks) >= maxMarks {
			m.forget()
			return
		}
		m.marks[key] = &mark{at: first}
		if _, scanned := m.scanned[key.queue]; !scanned {
			m.scanned[key.queue] = v.began
		}
	case v.fromStart && first.before(k.at):
		k.at, k.epoch = first, k.epoch+1
	case k.epoch == v.epochs[i] && k.at.before(first):
		k.at = first
	}
}

// observe moves the horizon: at clock a transaction had no xid yet, then it took xid; xmin is
// the lowest xid that is still open. A clock or an xid that falls is another server's, or one
// that was set back: what is known then says nothing.
func (m *marks) observe(clock time.Time, xid, xmin int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if clock.Before(m.clock) || m.noted != nil && xid < m.noted.xid {
		m.forget()
		m.horizon, m.noted = time.Time{}, nil
	}
	m.clock = clock
	if m.noted != nil && m.noted.xid < xmin {
		m.horizon, m.noted = m.noted.clock, nil
	}
	if m.noted == nil {
		m.noted = &note{clock: clock, xid: xid}
	}
}

// forget makes every scan begin at the start again. The caller holds the lock.
func (m *marks) forget() {
	m.generation++
	clear(m.marks)
	clear(m.scanned)
}
