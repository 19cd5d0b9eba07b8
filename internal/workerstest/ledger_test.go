//go:build workers

package workerstest

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

const (
	sqlLedger = `CREATE TABLE ledger (job_id text PRIMARY KEY, fence bigint NOT NULL, times int NOT NULL)`
	// sqlWrite has an effect only for the newest lease that has written so far.
	sqlWrite = `INSERT INTO ledger AS l (job_id, fence, times) VALUES ($1, $2::bigint, 1)
		ON CONFLICT (job_id) DO UPDATE SET fence = EXCLUDED.fence, times = l.times + 1 WHERE l.fence < EXCLUDED.fence`
)

// ledger is what jobs change: a table that is guarded by lease_no, behind HTTP.
type ledger struct {
	*world
	url     string
	began   chan struct{}
	stopped chan struct{} // closed when a handler that began may be answered: it is stopped
	causes  chan string   // of the handlers that write
}

func (w *world) newLedger() *ledger {
	l := &ledger{world: w, began: make(chan struct{}, 10), stopped: make(chan struct{}), causes: make(chan string, 10)}
	w.db.Exec(w.t, sqlLedger)
	mux := http.NewServeMux()
	mux.HandleFunc("/began", func(_ http.ResponseWriter, r *http.Request) {
		l.began <- struct{}{}
		select {
		case <-l.stopped:
		case <-r.Context().Done():
		}
	})
	mux.HandleFunc("/write", func(rw http.ResponseWriter, r *http.Request) {
		rows, err := l.write(r.Context(), r.FormValue("job"), r.FormValue("fence"))
		l.causes <- r.FormValue("cause")
		if err != nil {
			http.Error(rw, err.Error(), http.StatusInternalServerError)
			return
		}
		fmt.Fprintln(rw, rows)
	})
	server := httptest.NewServer(mux)
	w.t.Cleanup(server.Close)
	l.url = server.URL
	return l
}

func (l *ledger) write(ctx context.Context, job, fence string) (int64, error) {
	tag, err := l.db.SQL.Exec(ctx, sqlWrite, job, fence)
	return tag.RowsAffected(), err
}

// stoppedAtWrite is a worker that was stopped right before it writes, for longer than its lease.
func (l *ledger) stoppedAtWrite(queue, state string) (*process, string) {
	l.t.Helper()
	p := l.startPython("ledger.py", queue, 1, "LEDGER="+l.url)
	id := l.enqueue(queue, 1, 0)[0]
	await(l.t, "the handler", l.began)
	p.freeze()
	close(l.stopped)
	l.awaitState(id, state)
	return p, id
}

// cancelled checks that the handler knew, when it wrote, that it should not.
func (l *ledger) cancelled() {
	l.t.Helper()
	var cause string
	eventually(l.t, "it writes", func() bool {
		select {
		case cause = <-l.causes:
			return true
		default:
			return false
		}
	})
	if cause != "LeaseExpired" && cause != "LeaseLost" {
		l.t.Errorf("the cause was %s when it wrote", cause)
	}
}

func (l *ledger) holds(id, want string) {
	l.t.Helper()
	if got := one[string](l.world, `SELECT fence || ' ' || times FROM ledger WHERE job_id = $1`, id); got != want {
		l.t.Errorf("fence and times are %s, want %s", got, want)
	}
}

// TestNoDoubleEffect: a worker is stopped before it writes, and another does the job. When it goes
// on its handler is cancelled at once; that it writes all the same has no effect, and its Complete is
// refused.
func TestNoDoubleEffect(t *testing.T) {
	t.Parallel()
	l := newWorld(t).newLedger()
	queue := l.createQueue("ledger", shortLease, pb.OnExpiry_ON_EXPIRY_REQUEUE)
	p, id := l.stoppedAtWrite(queue, "PENDING")
	if rows, err := l.write(t.Context(), id, "2"); rows != 1 || err != nil {
		t.Fatalf("the other wrote %d rows: %v", rows, err)
	}
	l.takeOver(id)
	p.thaw()
	l.cancelled()
	eventually(t, "its late calls are refused", func() bool {
		return one[int](l.world, `SELECT coalesce(max(late_calls), 0)::int FROM leasehold.all_leases WHERE job_id = $1::bigint AND lease_no = 1`, id) > 0
	})
	p.drain()
	l.holds(id, "2 1")
	l.untouched(id)
}

// TestLateEffectCounts where nobody else has begun: it writes, and its Complete is accepted, late.
func TestLateEffectCounts(t *testing.T) {
	t.Parallel()
	l := newWorld(t).newLedger()
	queue := l.createQueue("ledger", shortLease, pb.OnExpiry_ON_EXPIRY_HOLD)
	p, id := l.stoppedAtWrite(queue, "STUCK")
	p.thaw()
	l.cancelled()
	l.awaitState(id, "COMPLETED")
	p.drain()
	l.holds(id, "1 1")
	l.completedLate(id)
}
