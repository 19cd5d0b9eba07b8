package server

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
)

// What lint asks for where the request does not say.
const (
	lintLookBack       = 24 * time.Hour
	lintTransactionAge = 5 * time.Minute
	lintSizeBudget     = 100 << 30
	lintTimeout        = 20 * time.Second
)

// Where numbers become findings.
const (
	// lintOften is how many leases must show a fault: a worker that was killed or frozen once
	// is an accident and no set-up that is wrong.
	lintOften = 3
	// lintMany leases are needed to speak of shares.
	lintMany = 20
	// tightShare is that of QueueLeases.Tight: with heartbeats at a third of the lease, a gap
	// of two thirds means that one was lost and the next was all that was left.
	tightShare = 2.0 / 3
	// Leases ended by time: at least so many, and such shares of all.
	expiresOften            = 5
	expiresWarn, expiresErr = 0.1, 0.5
	doubleRunsErr           = 0.1
	heldLong                = time.Hour
	heldFar                 = 10_000_000
	deadRows                = 100_000
	growthHorizonDays       = 30
	// growthRows are needed to tell what one job weighs.
	growthRows = 1000
)

func (q *queueService) Lint(ctx context.Context, req *pb.LintRequest) (*pb.LintResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, lintTimeout)
	defer cancel()
	query := store.LintQuery{Queue: req.Queue, LookBack: lintLookBack, MaxTransactionAge: lintTransactionAge}
	if d := req.GetLookBack(); d != nil {
		query.LookBack = d.AsDuration()
	}
	if d := req.GetMaxTransactionAge(); d != nil {
		query.MaxTransactionAge = d.AsDuration()
	}
	facts, err := q.store.LintFacts(ctx, query)
	if err != nil {
		return nil, err
	}
	l := &linter{budget: lintSizeBudget, sweepTooOld: q.sweepTooOld()}
	if req.SizeBudget != nil {
		l.budget = req.GetSizeBudget()
	}
	return &pb.LintResponse{CheckedAt: timestamppb.New(facts.At), Findings: l.judge(facts), LeasesExamined: facts.Leases}, nil
}

// linter judges facts. It is pure: the same facts have the same findings.
type linter struct {
	budget      int64
	sweepTooOld time.Duration
	found       []*pb.LintFinding
}

func (l *linter) judge(f *store.LintFacts) []*pb.LintFinding {
	for i := range f.Queues {
		q := &f.Queues[i]
		l.gaps(q)
		l.silent(q)
		l.doubleRuns(q)
		l.expiries(q)
		l.owners(q)
		l.choice(q)
	}
	l.watcher(f)
	l.vacuum(f)
	l.growth(f)
	slices.SortStableFunc(l.found, func(a, b *pb.LintFinding) int {
		return cmp.Or(cmp.Compare(b.GetSeverity(), a.GetSeverity()), cmp.Compare(a.GetCheck(), b.GetCheck()), cmp.Compare(a.GetSubject(), b.GetSubject()))
	})
	return l.found
}

const (
	lintWarning = pb.LintSeverity_LINT_SEVERITY_WARNING
	lintError   = pb.LintSeverity_LINT_SEVERITY_ERROR
)

// severe is ERROR where a fault is bad, else WARNING.
func severe(bad bool) pb.LintSeverity {
	if bad {
		return lintError
	}
	return lintWarning
}

func (l *linter) add(check pb.LintCheck, severity pb.LintSeverity, subject string, numbers map[string]float64, message, remedy string) {
	l.found = append(l.found, &pb.LintFinding{
		Check: check, Severity: severity, Subject: subject, Numbers: numbers, Message: message, Remedy: remedy,
	})
}

func (l *linter) gaps(q *store.QueueLeases) {
	outlived := q.OutlivedBeating >= lintOften
	tight := q.Answered >= lintMany && q.Tight >= lintOften && q.GapShareP99 >= tightShare && q.OutlivedSilent == 0
	if !outlived && !tight {
		return
	}
	message := fmt.Sprintf("Of %d leases, signs of life lay up to %s apart (p99 %s) in a lease of %s", q.Answered, short(q.GapMax), short(q.GapP99), short(q.LeaseOfMax))
	if outlived {
		message += fmt.Sprintf("; %d of them were silent for longer than their lease, though the worker lived", q.OutlivedBeating)
	}
	l.add(pb.LintCheck_LINT_CHECK_LEASE_TOO_SHORT, severe(outlived), "queue "+q.Queue, map[string]float64{
		"leases": float64(q.Answered), "gap_p99_seconds": q.GapP99.Seconds(), "gap_max_seconds": q.GapMax.Seconds(),
		"gap_p99_share_of_lease": q.GapShareP99, "lease_seconds": q.LeaseOfMax.Seconds(), "leases_outlived": float64(q.OutlivedBeating),
	}, message+".", fmt.Sprintf("Send heartbeats at least each third of the lease (next_heartbeat_in says when), or lengthen it: leasehold queues set %s --lease-duration %s",
		q.Queue, roomFor(q.GapMax)))
}

// roomFor is a lease in which two heartbeats in a row may be lost.
func roomFor(gap time.Duration) time.Duration {
	return min(max((3*gap).Round(time.Second), time.Second), 12*time.Hour)
}

func (l *linter) silent(q *store.QueueLeases) {
	if q.OutlivedSilent < lintOften {
		return
	}
	l.add(pb.LintCheck_LINT_CHECK_NO_HEARTBEAT, lintError, "queue "+q.Queue, map[string]float64{
		"leases": float64(q.OutlivedSilent), "longest_seconds": q.LongestSilent.Seconds(), "lease_seconds": q.LeaseOfSilent.Seconds(),
	}, fmt.Sprintf("%d jobs ran for up to %s in a lease of %s and sent no heartbeat: while they ran, others could take them.",
		q.OutlivedSilent, short(q.LongestSilent), short(q.LeaseOfSilent)),
		fmt.Sprintf("Make the worker send heartbeats while it works, or lengthen the lease beyond the longest run: leasehold queues set %s --lease-duration %s",
			q.Queue, roomFor(q.LongestSilent)))
}

func (l *linter) doubleRuns(q *store.QueueLeases) {
	if q.DoubleRuns < lintOften {
		return
	}
	share := float64(q.DoubleRuns) / float64(q.Leases)
	l.add(pb.LintCheck_LINT_CHECK_DOUBLE_RUNS, severe(share >= doubleRunsErr), "queue "+q.Queue, map[string]float64{
		"leases": float64(q.DoubleRuns), "late_calls": float64(q.LateCalls), "leases_examined": float64(q.Leases), "share": share,
	}, fmt.Sprintf("The work of %d of %d leases ran twice: their holders made %d calls after another had begun.", q.DoubleRuns, q.Leases, q.LateCalls),
		"Stop the work when a call is refused with LEASE_SUPERSEDED, send heartbeats in time, and let downstream systems refuse a smaller lease_no. Where a second run does harm: leasehold queues set "+
			q.Queue+" --on-expiry hold")
}

func (l *linter) expiries(q *store.QueueLeases) {
	share := float64(q.ByTime) / float64(max(q.Leases, 1))
	if q.ByTime < expiresOften || share < expiresWarn {
		return
	}
	l.add(pb.LintCheck_LINT_CHECK_LEASES_EXPIRE, severe(share >= expiresErr), "queue "+q.Queue, map[string]float64{
		"leases": float64(q.ByTime), "leases_examined": float64(q.Leases), "share": share,
	}, fmt.Sprintf("%d of %d leases (%.0f %%) were ended by time and not by their holder.", q.ByTime, q.Leases, 100*share),
		"Find what ends the workers or keeps them silent: leasehold stuck --queue "+q.Queue+", and leasehold jobs get ID for the story of one job.")
}

func (l *linter) owners(q *store.QueueLeases) {
	remedy := "Give each worker process a lease_owner of its own that people can find it by, as host name and process number."
	if q.BlankOwners >= lintOften {
		l.add(pb.LintCheck_LINT_CHECK_OWNER_EMPTY, lintWarning, "queue "+q.Queue,
			map[string]float64{"leases": float64(q.BlankOwners), "leases_examined": float64(q.Leases)},
			fmt.Sprintf("The lease_owner of %d of %d leases tells nothing: %q.", q.BlankOwners, q.Leases, q.BlankOwner), remedy)
	}
	// One process is healthy too: only a name without a number cannot be that of an instance.
	if q.Owners == 1 && q.BlankOwners == 0 && q.Leases >= lintMany && !strings.ContainsFunc(q.MainOwner, unicode.IsDigit) {
		l.add(pb.LintCheck_LINT_CHECK_OWNER_SAME, lintWarning, "queue "+q.Queue,
			map[string]float64{"owners": 1, "leases": float64(q.Leases)},
			fmt.Sprintf("All %d leases have the same lease_owner %q, which names no instance.", q.Leases, cut(q.MainOwner, maxFieldBytes)), remedy)
	}
}

func (l *linter) choice(q *store.QueueLeases) {
	if q.OnExpiry != store.OnExpiryUnset {
		return
	}
	l.add(pb.LintCheck_LINT_CHECK_ON_EXPIRY_UNCHOSEN, lintWarning, "queue "+q.Queue,
		map[string]float64{"leases_ended_by_time": float64(q.ByTime)},
		"Nobody chose what becomes of a job whose lease ran out: it runs again, though its first run may have taken effect.",
		fmt.Sprintf("Choose: leasehold queues set %s --on-expiry requeue where a second run does no harm, --on-expiry hold where a person must decide.", q.Queue))
}
