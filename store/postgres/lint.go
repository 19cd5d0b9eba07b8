package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/store"
)

// How many of the newest rows lint looks at: tens of milliseconds' worth.
const (
	lintFinished = 10_000
	lintLive     = 2_000
	lintFormer   = 5_000
	lintOverdue  = 10_000
)

type lintLeasesRow struct {
	Queue                                   string
	OnExpiry                                int16
	Leases, Answered                        int64
	GapP99, GapMax, GapShareP99, LeaseOfMax float64
	Tight, OutlivedBeating, OutlivedSilent  int64
	LongestSilent, LeaseOfSilent            float64
	ByTime, DoubleRuns, LateCalls           int64
	Owners, MainOwnerLeases, BlankOwners    int64
	MainOwner, BlankOwner                   string
}

func (r *lintLeasesRow) leases() store.QueueLeases {
	return store.QueueLeases{
		Queue: r.Queue, OnExpiry: store.OnExpiry(r.OnExpiry), Leases: r.Leases, Answered: r.Answered,
		GapP99: seconds(r.GapP99), GapMax: seconds(r.GapMax), GapShareP99: r.GapShareP99, LeaseOfMax: seconds(r.LeaseOfMax),
		Tight: r.Tight, OutlivedBeating: r.OutlivedBeating, OutlivedSilent: r.OutlivedSilent,
		LongestSilent: seconds(r.LongestSilent), LeaseOfSilent: seconds(r.LeaseOfSilent),
		ByTime: r.ByTime, DoubleRuns: r.DoubleRuns, LateCalls: r.LateCalls,
		Owners: r.Owners, MainOwner: r.MainOwner, MainOwnerLeases: r.MainOwnerLeases,
		BlankOwners: r.BlankOwners, BlankOwner: r.BlankOwner,
	}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// LintFacts reads what lint judges, see store.Inspector.
func (s *Store) LintFacts(ctx context.Context, q store.LintQuery) (*store.LintFacts, error) {
	queue, err := s.queueID(ctx, q.Queue)
	if err != nil {
		return nil, err
	}
	facts := &store.LintFacts{}
	if err := s.lintService(ctx, facts); err != nil {
		return nil, err
	}
	rows, err := query(ctx, s, unit{
		lane: s.reads, sql: sqlLintLeases, args: []any{queue, q.LookBack, lintFinished, lintLive, lintFormer}, idempotent: true,
	}, pgx.RowToStructByName[lintLeasesRow])
	if err != nil {
		return nil, err
	}
	for i := range rows {
		facts.Queues = append(facts.Queues, rows[i].leases())
		facts.Leases += rows[i].Leases
	}
	if q.Queue != nil {
		return &store.LintFacts{At: facts.At, Leases: facts.Leases, Queues: facts.Queues}, nil
	}
	if facts.Tables, err = s.lintTables(ctx); err != nil {
		return nil, err
	}
	facts.Holders, err = s.heldBy(ctx, sqlLintHolders, q.MaxTransactionAge)
	return facts, err
}

func (s *Store) lintService(ctx context.Context, facts *store.LintFacts) error {
	type serviceRow struct {
		At                   time.Time
		SweepAge, JobsPerDay float64
		Overdue              int64
	}
	rows, err := query(ctx, s, unit{lane: s.reads, sql: sqlLintService, args: []any{lintOverdue, lintFinished}, idempotent: true},
		pgx.RowToStructByName[serviceRow])
	if err != nil {
		return err
	}
	for _, r := range rows {
		// Seconds since 1970 are within a Duration.
		facts.At, facts.SweepAge, facts.Overdue, facts.JobsPerDay = r.At, seconds(r.SweepAge), r.Overdue, r.JobsPerDay
	}
	return nil
}

func (s *Store) lintTables(ctx context.Context) ([]store.TableFacts, error) {
	type tableRow struct {
		Table                                               string
		Partitions, Bytes, LiveRows, DeadRows, Updates, HOT int64
		VacuumedAgo                                         *time.Duration
	}
	rows, err := query(ctx, s, unit{lane: s.reads, sql: sqlLintTables, idempotent: true}, pgx.RowToStructByName[tableRow])
	tables := make([]store.TableFacts, len(rows))
	for i, r := range rows {
		tables[i] = store.TableFacts(r)
	}
	return tables, err
}
