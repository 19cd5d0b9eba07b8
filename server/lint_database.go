package server

import (
	"cmp"
	"fmt"
	"time"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
)

// sweepTooOld is when a pass of the watcher is missing: the bound of readiness.
func (s *Server) sweepTooOld() time.Duration {
	return 3*cmp.Or(time.Duration(s.watcherInterval.Load()), DefaultWatcherInterval) + sweepSlack
}

func (l *linter) watcher(f *store.LintFacts) {
	if f.SweepAge <= l.sweepTooOld {
		return
	}
	l.add(pb.LintCheck_LINT_CHECK_WATCHER_LATE, lintError, "watcher", map[string]float64{
		"last_pass_seconds": f.SweepAge.Seconds(), "allowed_seconds": l.sweepTooOld.Seconds(), "leases_overdue": float64(f.Overdue),
	}, fmt.Sprintf("The watcher's last pass was %s ago, above %s; %d leases ran out more than 2 minutes ago and were not ended.",
		short(f.SweepAge), short(l.sweepTooOld), f.Overdue),
		"Look at the log and the readiness (/readyz) of the replicas: each of them sweeps, and one is enough.")
}

func (l *linter) vacuum(f *store.LintFacts) {
	for _, h := range f.Holders {
		age := ""
		if h.For > 0 {
			age = " for " + short(h.For)
		}
		l.add(pb.LintCheck_LINT_CHECK_VACUUM_HELD, severe(h.For >= heldLong || h.Transactions >= heldFar), h.Holder+" "+h.Name, map[string]float64{
			"open_seconds": h.For.Seconds(), "transactions": float64(h.Transactions),
		}, fmt.Sprintf("It has kept dead rows from being removed%s, while %d transactions began.", age, h.Transactions), releases[h.Holder])
	}
	for _, t := range f.Tables {
		if t.DeadRows < deadRows || t.DeadRows < t.LiveRows {
			continue
		}
		vacuumed := "never"
		if t.VacuumedAgo != nil {
			vacuumed = short(*t.VacuumedAgo) + " ago"
		}
		l.add(pb.LintCheck_LINT_CHECK_DEAD_ROWS, lintWarning, "table "+t.Table, map[string]float64{
			"dead_rows": float64(t.DeadRows), "live_rows": float64(t.LiveRows), "bytes": float64(t.Bytes),
			"heap_only_share": float64(t.HOT) / float64(max(t.Updates, 1)),
		}, fmt.Sprintf("It has %d dead rows beside %d live ones, in %s; it was last vacuumed %s.", t.DeadRows, t.LiveRows, bytesText(t.Bytes), vacuumed),
			"Let vacuum pass: end what holds it back (VACUUM_HELD), see that autovacuum is on and not starved, or run VACUUM leasehold."+t.Table+".")
	}
}

// releases says how to let go of what holds back vacuum.
var releases = map[string]string{
	store.HolderSession:  "End the transaction, or its session with pg_terminate_backend; bound such sessions by idle_in_transaction_session_timeout. Reports belong on a standby.",
	store.HolderPrepared: "Find its coordinator, or end it: COMMIT PREPARED or ROLLBACK PREPARED.",
	store.HolderSlot:     "Let its reader come back, or drop it: pg_drop_replication_slot.",
	store.HolderStandby:  "End the long query on the standby, or switch hot_standby_feedback off there.",
}

func (l *linter) growth(f *store.LintFacts) {
	var total, rows int64
	largest := store.TableFacts{}
	for _, t := range f.Tables {
		total += t.Bytes
		if t.Table == "jobs" || t.Table == "finished_jobs" {
			rows += t.LiveRows
		}
		if t.Bytes > largest.Bytes {
			largest = t
		}
	}
	perDay := 0.0
	if rows >= growthRows {
		perDay = f.JobsPerDay * float64(total) / float64(rows)
	}
	if float64(total)+perDay*growthHorizonDays <= float64(l.budget) {
		return
	}
	l.add(pb.LintCheck_LINT_CHECK_GROWTH, lintWarning, "tables", map[string]float64{
		"bytes": float64(total), "bytes_per_day": perDay, "jobs_per_day": f.JobsPerDay, "budget_bytes": float64(l.budget),
		"largest_table_bytes": float64(largest.Bytes), "largest_table_partitions": float64(largest.Partitions),
	}, fmt.Sprintf("Tables and history have %s and grow by %s a day, above the budget of %s within %d days; the largest is %s with %s.",
		bytesText(total), bytesText(int64(perDay)), bytesText(l.budget), growthHorizonDays, largest.Table, bytesText(largest.Bytes)),
		"Let payloads and history go after a while: --retain-payloads and --retain-facts of leasehold serve. Or raise the budget.")
}

// bytesText is a size for people.
func bytesText(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d bytes", n)
	}
	value, names := float64(n)/unit, []string{"KiB", "MiB", "GiB", "TiB", "PiB"}
	for value >= unit && len(names) > 1 {
		value, names = value/unit, names[1:]
	}
	return fmt.Sprintf("%.1f %s", value, names[0])
}
