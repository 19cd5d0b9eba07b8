package postgres

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
	"github.com/leasehold/leasehold/store"
)

// at is a position n seconds after the origin.
func at(n int) position {
	return position{runAt: origin.runAt.Add(time.Duration(n) * time.Second), id: 1}
}

// marked is what a scan of queue "q", priority 5, begins with.
func (m *marks) marked() position {
	v := m.view([]string{"q"}, false)
	return position{runAt: v.runAt[4], id: v.ids[4]}
}

// observed are marks whose horizon lies n seconds after the origin.
func observed(n int) *marks {
	m := newMarks()
	m.rest = time.Now().Add(time.Hour) // no scan from the start of its own accord
	m.observe(at(n).runAt, 100, 100)
	m.observe(at(n+1).runAt, 101, 101)
	return m
}

func TestR48TheMarkNeverPassesTheHorizon(t *testing.T) {
	t.Parallel()
	m := newMarks()
	m.rest = time.Now().Add(time.Hour)
	m.found(m.view([]string{"q"}, false), 0, 5, at(1))
	if got := m.marked(); got != origin {
		t.Errorf("without a horizon the mark is %v", got)
	}
	m = observed(10)
	m.found(m.view([]string{"q"}, false), 0, 5, at(5))
	if got := m.marked(); got != at(5) {
		t.Errorf("the mark is %v, the first job at %v", got, at(5))
	}
	m.found(m.view([]string{"q"}, false), 0, 5, at(20))
	if got := m.marked(); !got.runAt.Equal(at(10).runAt) || got.id != 0 {
		t.Errorf("the mark is %v, beyond the horizon %v", got, at(10))
	}
}

func TestR48TheHorizonWaitsForTransactionsThatHaveWritten(t *testing.T) {
	t.Parallel()
	m := newMarks()
	m.observe(at(1).runAt, 100, 90) // 90 is open
	m.observe(at(2).runAt, 101, 90)
	m.observe(at(3).runAt, 102, 100) // 100 itself is still open in this snapshot
	if !m.horizon.IsZero() {
		t.Errorf("the horizon is %v while older transactions are open", m.horizon)
	}
	m.observe(at(4).runAt, 103, 101)
	if !m.horizon.Equal(at(1).runAt) {
		t.Errorf("the horizon is %v, want %v", m.horizon, at(1).runAt)
	}
}

func TestR48AMarkIsRaisedOnlyFromTheEpochThatItsStatementRead(t *testing.T) {
	t.Parallel()
	m := observed(100)
	early := m.view([]string{"q"}, false)
	m.found(early, 0, 5, at(50))
	before := m.view([]string{"q"}, false)
	m.found(m.view([]string{"q"}, true), 0, 5, at(7)) // a scan from the start finds a job that lay before it
	m.found(before, 0, 5, at(60))
	if got := m.marked(); got != at(7) {
		t.Errorf("a statement from before raised the mark that was lowered meanwhile to %v", got)
	}
	m.found(m.view([]string{"q"}, false), 0, 5, at(8))
	if got := m.marked(); got != at(8) {
		t.Errorf("a statement from after does not raise it: %v", got)
	}
}

func TestR48AClockOrAnXidThatFallsForgetsTheMarks(t *testing.T) {
	t.Parallel()
	for name, observe := range map[string]func(*marks){
		"clock": func(m *marks) { m.observe(at(50).runAt, 102, 102) },
		"xid":   func(m *marks) { m.observe(at(102).runAt, 3, 3) },
	} {
		m := observed(100)
		m.found(m.view([]string{"q"}, false), 0, 5, at(50))
		underWay := m.view([]string{"q"}, false)
		observe(m)
		if got := m.marked(); got != origin {
			t.Errorf("%s: the mark is still %v", name, got)
		}
		m.found(underWay, 0, 5, at(60))
		if got := m.marked(); got != origin {
			t.Errorf("%s: a statement from before set the mark to %v", name, got)
		}
	}
}

func TestR48ScansFromTheStartTakeATwentiethOfTheTime(t *testing.T) {
	t.Parallel()
	m := observed(100)
	m.rest = time.Time{}
	m.found(m.view([]string{"q"}, false), 0, 5, at(50))
	m.scanned["q"] = time.Now().Add(-time.Minute)
	v := m.view([]string{"q"}, false)
	if !v.fromStart {
		t.Fatal("a scan from the start is due after a minute")
	}
	v.began = v.began.Add(-time.Second) // it took a second
	m.scannedFromStart(v)
	if rest := time.Until(m.rest); rest < 19*time.Second {
		t.Errorf("after a second of scanning the next may come in %v", rest)
	}
	m.scanned["q"] = time.Now().Add(-time.Minute)
	if m.view([]string{"q"}, false).fromStart || m.mayRescan(m.view([]string{"q"}, false)) {
		t.Error("a scan from the start before the rest is over")
	}
}

// markedStore is a Store with queue q that never scans from the start of its own accord, and
// a session of a stranger. It has a server of its own: an open transaction in any database of a
// server holds back the marks.
func markedStore(t *testing.T) (*Store, *pgx.Conn) {
	t.Helper()
	url := pgtest.Server(t).URL("postgres")
	if err := Migrate(t.Context(), url, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	s.marks.rest = time.Now().Add(time.Hour)
	if _, err := s.CreateQueue(t.Context(), store.Queue{Name: "q"}); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return s, conn
}

// churn enqueues and leases n jobs, in claims of 100, with stamps in between.
func churn(t *testing.T, s *Store, n int) {
	t.Helper()
	for done := 0; done < n; done += 100 {
		if err := s.StampWritable(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Enqueue(t.Context(), slicesOf(100, store.NewJob{Queue: "q"})); err != nil {
			t.Fatal(err)
		}
		if got := claimed(t, s, 100); got != 100 {
			t.Fatalf("%d of 100 jobs were leased", got)
		}
	}
}

func slicesOf[T any](n int, v T) []T {
	all := make([]T, n)
	for i := range all {
		all[i] = v
	}
	return all
}

func claimed(t *testing.T, s *Store, n int) int {
	t.Helper()
	got, err := s.Acquire(t.Context(), []store.Acquire{{Queues: []string{"q"}, Owner: "w", MaxJobs: n}})
	if err != nil || got[0].Err != nil {
		t.Fatal(err, got[0].Err)
	}
	return len(got[0].Leases)
}

// TestR48NothingThatIsCommittedLateLiesBeforeTheMark: a job that a transaction put in long
// before it committed is found by the next claim, which begins at the mark.
func TestR48NothingThatIsCommittedLateLiesBeforeTheMark(t *testing.T) {
	t.Parallel()
	s, stranger := markedStore(t)
	tx, err := stranger.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), sqlEnqueue, enqueueArgs([]store.NewJob{{Queue: "q"}}, nil)...); err != nil {
		t.Fatal(err)
	}
	churn(t, s, 500)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := claimed(t, s, 10); got != 1 {
		t.Errorf("%d jobs were leased, want the one that was committed late", got)
	}
	churn(t, s, 500)
	if got := s.marks.marked(); got == origin {
		t.Error("the mark did not move once the transaction had ended")
	}
}

// TestR48AJobBeforeTheMarkIsFoundFromTheStart: where a job was moved by hand, a claim that
// finds nothing behind the mark looks from the start and lowers it.
func TestR48AJobBeforeTheMarkIsFoundFromTheStart(t *testing.T) {
	t.Parallel()
	s, stranger := markedStore(t)
	churn(t, s, 300)
	moved, err := s.Enqueue(t.Context(), slicesOf(2, store.NewJob{Queue: "q"}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stranger.Exec(t.Context(), `UPDATE leasehold.jobs SET run_at = run_at - interval '1 hour' WHERE id = ANY ($1::bigint[])`,
		[]int64{int64(moved[0].JobID), int64(moved[1].JobID)}); err != nil {
		t.Fatal(err)
	}
	if got := claimed(t, s, 1); got != 0 {
		t.Fatal("the job does not lie before the mark")
	}
	s.marks.rest = time.Time{}
	if got := claimed(t, s, 1); got != 1 {
		t.Fatal("a claim that finds nothing does not look from the start")
	}
	s.marks.rest = time.Now().Add(time.Hour)
	if got := claimed(t, s, 1); got != 1 {
		t.Error("the scan from the start did not lower the mark")
	}
}

// TestR48AClaimDoesNotAgeUnderAHeldSnapshot counts the buffers that claims touch while a
// snapshot is held that keeps every dead entry: they do not grow with what was claimed.
func TestR48AClaimDoesNotAgeUnderAHeldSnapshot(t *testing.T) {
	t.Parallel()
	s, stranger := markedStore(t)
	tx, err := stranger.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), `SELECT count(*) FROM leasehold.jobs`); err != nil {
		t.Fatal(err)
	}
	churn(t, s, 500)
	early := scanned(t, s, false)
	churn(t, s, 4000)
	late, fromStart := scanned(t, s, false), scanned(t, s, true)
	t.Logf("buffers of a look for ready jobs: %d early, %d after 4,000 more, %d from the start", early, late, fromStart)
	if fromStart < 4*late {
		t.Errorf("the scan from the start touches %d buffers: the snapshot holds nothing back", fromStart)
	}
	if late > 2*early+100 {
		t.Errorf("%d buffers after 4,000 jobs, %d before", late, early)
	}
}

// scanned is how many buffers a look for ready jobs touches.
func scanned(t *testing.T, s *Store, fromStart bool) (buffers int64) {
	t.Helper()
	const count = `SELECT sum(pg_stat_get_xact_blocks_fetched(c.oid))::bigint FROM pg_class c WHERE c.relnamespace = 'leasehold'::regnamespace`
	err := inTx(t.Context(), s, s.work, false, func(ctx context.Context, tx pgx.Tx) error {
		var before int64
		if err := tx.QueryRow(ctx, count).Scan(&before); err != nil {
			return err
		}
		v := s.marks.view([]string{"q"}, fromStart)
		if _, err := tx.Exec(ctx, sqlReadyQueues, []string{"q"}, v.runAt, v.ids); err != nil {
			return err
		}
		err := tx.QueryRow(ctx, count).Scan(&buffers)
		buffers -= before
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return buffers
}
