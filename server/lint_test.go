package server

import (
	"strings"
	"testing"
	"time"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
)

// TestLintJudgesByShares: what happens once, or seldom among many, is no finding.
func TestLintJudgesByShares(t *testing.T) {
	t.Parallel()
	healthy := store.QueueLeases{
		Queue: "q", OnExpiry: store.OnExpiryHold, Leases: 1000, Answered: 1000, Owners: 4, MainOwner: "w", MainOwnerLeases: 400,
		GapP99: 21 * time.Second, GapMax: 70 * time.Second, GapShareP99: 0.35, LeaseOfMax: time.Minute,
		OutlivedBeating: 2, Tight: 2, ByTime: 40, DoubleRuns: 2,
	}
	for name, c := range map[string]struct {
		change func(q *store.QueueLeases)
		want   pb.LintCheck
	}{
		"healthy":                {func(*store.QueueLeases) {}, 0},
		"one process":            {func(q *store.QueueLeases) { q.Owners, q.MainOwner = 1, "host-7/1" }, 0},
		"few leases of one name": {func(q *store.QueueLeases) { q.Owners, q.Leases, q.ByTime = 1, 19, 0 }, 0},
		"one name":               {func(q *store.QueueLeases) { q.Owners = 1 }, pb.LintCheck_LINT_CHECK_OWNER_SAME},
		"blank names":            {func(q *store.QueueLeases) { q.BlankOwners, q.BlankOwner = 3, " " }, pb.LintCheck_LINT_CHECK_OWNER_EMPTY},
		"frozen three times":     {func(q *store.QueueLeases) { q.OutlivedBeating = 3 }, pb.LintCheck_LINT_CHECK_LEASE_TOO_SHORT},
		"one long gap of few":    {func(q *store.QueueLeases) { q.Answered, q.GapShareP99, q.Tight = 25, 1.5, 1 }, 0},
		"no room":                {func(q *store.QueueLeases) { q.GapShareP99, q.Tight = 0.7, 12 }, pb.LintCheck_LINT_CHECK_LEASE_TOO_SHORT},
		"no heartbeats":          {func(q *store.QueueLeases) { q.OutlivedSilent = 3 }, pb.LintCheck_LINT_CHECK_NO_HEARTBEAT},
		"double runs":            {func(q *store.QueueLeases) { q.DoubleRuns = 3 }, pb.LintCheck_LINT_CHECK_DOUBLE_RUNS},
		"expiries":               {func(q *store.QueueLeases) { q.ByTime = 100 }, pb.LintCheck_LINT_CHECK_LEASES_EXPIRE},
		"few expiries of few":    {func(q *store.QueueLeases) { q.Leases, q.ByTime = 5, 4 }, 0},
		"never chose":            {func(q *store.QueueLeases) { q.OnExpiry = store.OnExpiryUnset }, pb.LintCheck_LINT_CHECK_ON_EXPIRY_UNCHOSEN},
	} {
		q := healthy
		c.change(&q)
		found := (&linter{budget: 1, sweepTooOld: time.Minute}).judge(&store.LintFacts{Queues: []store.QueueLeases{q}})
		switch {
		case c.want == 0 && len(found) > 0, c.want != 0 && (len(found) != 1 || found[0].GetCheck() != c.want):
			t.Errorf("%s: found %v, want %v", name, found, c.want)
		}
	}
}

func TestLintLooksAheadOfGrowth(t *testing.T) {
	t.Parallel()
	const gib = 1 << 30
	facts := func(perDay float64) *store.LintFacts {
		return &store.LintFacts{JobsPerDay: perDay, Tables: []store.TableFacts{
			{Table: "finished_jobs", Bytes: gib, LiveRows: 1 << 20}, {Table: "job_data", Partitions: 12, Bytes: gib, LiveRows: 1 << 20},
		}}
	}
	// A job weighs 2 KiB: 1,048,576 a day are 2 GiB a day, 60 GiB in 30 days.
	for budget, want := range map[int64]int{61 * gib: 1, 63 * gib: 0, 1 * gib: 1} {
		l := &linter{budget: budget, sweepTooOld: time.Minute}
		if found := l.judge(facts(1 << 20)); len(found) != want {
			t.Errorf("a budget of %d GiB: %v", budget/gib, found)
		}
	}
	l := &linter{budget: 61 * gib, sweepTooOld: time.Minute}
	found := l.judge(facts(1 << 20))
	if f := found[0]; f.GetNumbers()["bytes_per_day"] != 2*gib || !strings.Contains(f.GetMessage(), "2.0 GiB a day") {
		t.Errorf("%v", f)
	}
}

func TestLintSortsTheWorstFirst(t *testing.T) {
	t.Parallel()
	ago := time.Hour
	l := &linter{budget: 1 << 40, sweepTooOld: time.Minute}
	found := l.judge(&store.LintFacts{
		SweepAge: time.Hour, Overdue: 7,
		Queues:  []store.QueueLeases{{Queue: "b"}, {Queue: "a"}},
		Tables:  []store.TableFacts{{Table: "jobs", DeadRows: 200_000, LiveRows: 5, VacuumedAgo: &ago}, {Table: "stages", DeadRows: 200_000, LiveRows: 300_000}},
		Holders: []store.HeldSnapshot{{Holder: store.HolderSession, Name: "7 of app", Transactions: 5, For: 10 * time.Minute}},
	})
	var got []string
	for _, f := range found {
		got = append(got, f.GetSubject())
	}
	if want := "watcher,queue a,queue b,session 7 of app,table jobs"; strings.Join(got, ",") != want {
		t.Errorf("got %v, want %s", got, want)
	}
}
