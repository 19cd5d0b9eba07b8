package postgres

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasehold/leasehold/store"
)

// lane is a share of the connections with its own bounds, so that heartbeats and ends are
// never queued behind acquires, enqueues or lists.
type lane struct {
	pool *pgxpool.Pool
	// slots bounds how many connections of the pool this lane may hold at once.
	slots chan struct{}
	// statement bounds one statement, lock the wait for one lock.
	statement, lock time.Duration
}

func newLane(pool *pgxpool.Pool, slots int, statement, lock time.Duration) *lane {
	return &lane{pool: pool, slots: make(chan struct{}, slots), statement: statement, lock: lock}
}

const (
	// deadlineMargin is the least that is left of the caller's time for the way back.
	deadlineMargin = 20 * time.Millisecond
	// networkMargin is granted beyond the server's own timeout before the connection is
	// taken for dead: only a black hole gets that far.
	networkMargin = 2 * time.Second
	// acquireTimeout bounds the wait for a connection.
	acquireTimeout = 5 * time.Second
	maxTries       = 4
)

// sqlSettings goes ahead of every statement, in the same round trip and transaction. The
// planner settings keep the statements on their indexes whatever the statistics say: plans
// made while a table was empty must not scan it when it is full, and a batch whose size the
// planner overrates must not hash all of jobs. So no statement joins two batches with each
// other; `IN (SELECT …) IS TRUE` keeps a look-up in one a hashed subplan. The timeouts are local,
// because behind a transaction-mode pooler a session belongs to nobody. The third ends the
// transaction of a replica that froze or vanished in the middle of one: its locks would stay
// for as long as TCP takes the peer for alive, which is for ever where only a process stopped.
const sqlSettings = `
SELECT set_config('statement_timeout', $1, true), set_config('lock_timeout', $2, true),
       set_config('idle_in_transaction_session_timeout', '5s', true),
       set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
       set_config('enable_mergejoin', 'off', true), set_config('enable_hashjoin', 'off', true),
       set_config('plan_cache_mode', 'force_generic_plan', true), set_config('jit', 'off', true)`

// unit is one statement, or several of one transaction, with what is needed to repeat it.
type unit struct {
	lane *lane
	// before run ahead of sql in the same transaction; their rows are dropped, except
	// those of probe.
	before []prepared
	sql    string
	args   []any
	// idempotent: repeating it after an unknown outcome cannot do harm.
	idempotent bool
	// lock bounds the wait for one lock. Default: that of the lane.
	lock time.Duration
}

type prepared struct {
	sql  string
	args []any
	into any // receives the single value of the single row, if not nil
}

// query runs a unit and collects its rows.
func query[T any](ctx context.Context, s *Store, u unit, row pgx.RowToFunc[T]) ([]T, error) {
	var rows []T
	err := s.repeated(ctx, u.idempotent, func() (sent bool, err error) {
		rows, sent, err = attempt(ctx, u, row)
		return sent, err
	})
	if err != nil {
		return nil, err
	}
	return rows, nil
}

// repeated runs a try, with bounded repetition inside the caller's time: always after a
// clean rollback, after an unknown outcome only if it is idempotent. sent tells whether the
// server may have seen what could have committed.
func (s *Store) repeated(ctx context.Context, idempotent bool, once func() (sent bool, err error)) error {
	wait := 10 * time.Millisecond
	for try := 1; ; try++ {
		sent, err := once()
		if err == nil || isDomain(err) {
			return err
		}
		err = plain(err)
		if ctx.Err() != nil {
			return callerGone(ctx, err, sent, idempotent)
		}
		again := false
		switch classify(err, sent) {
		case faultUndone:
			again = true
		case faultNoPartition:
			again = !unavailable(s.makePartitions(ctx)) // busy: another is making them
		case faultUnavailable:
			again = !isCode(err, codeReadOnly)
		case faultUnknown:
			again = idempotent
		}
		if !again || try == maxTries || !sleep(ctx, jittered(wait)) {
			s.log.Debug("statement failed", "error", err, "try", try, "sent", sent)
			return domainError(err, sent, idempotent)
		}
		wait *= 4
	}
}

// callerGone keeps the difference between "nothing happened" and "nobody knows" for a
// caller whose time ran out.
func callerGone(ctx context.Context, err error, sent, idempotent bool) error {
	if sent && !idempotent && classify(err, sent) == faultUnknown {
		return &store.OutcomeUnknownError{Cause: err}
	}
	return ctx.Err()
}

// attempt sends the unit once, in one round trip and one implicit transaction. sent tells
// whether the server may have seen it.
func attempt[T any](ctx context.Context, u unit, row pgx.RowToFunc[T]) (out []T, sent bool, err error) {
	conn, release, err := u.lane.conn(ctx)
	if err != nil {
		return nil, false, err
	}
	var broken error
	defer func() { release(broken) }()
	budget := u.lane.budget(ctx)
	if budget <= 0 {
		return nil, false, context.DeadlineExceeded
	}
	// Cancelling a query closes its connection, and a caller that leaves must not cost
	// one: the server's own timeout ends the statement.
	hard, cancel := context.WithTimeout(context.WithoutCancel(ctx), budget+networkMargin)
	defer cancel()

	batch := &pgx.Batch{}
	batch.Queue(sqlSettings, millis(budget), millis(min(budget, cmp.Or(u.lock, u.lane.lock))))
	for _, p := range u.before {
		batch.Queue(p.sql, p.args...)
	}
	batch.Queue(u.sql, u.args...)
	results := conn.SendBatch(hard, batch)
	out, err = readResults(results, u, row)
	if closeErr := results.Close(); err == nil {
		err = closeErr
	}
	broken = err
	if err != nil {
		return nil, true, err
	}
	return out, true, nil
}

func readResults[T any](results pgx.BatchResults, u unit, row pgx.RowToFunc[T]) ([]T, error) {
	if _, err := results.Exec(); err != nil {
		return nil, err
	}
	for _, p := range u.before {
		if p.into == nil {
			if _, err := results.Exec(); err != nil {
				return nil, err
			}
		} else if err := results.QueryRow().Scan(p.into); err != nil {
			return nil, err
		}
	}
	rows, err := results.Query()
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, row)
}

// conn takes a connection of the lane. release gives it back, or closes it where err says
// that the session is of no use any more.
func (l *lane) conn(ctx context.Context) (*pgxpool.Conn, func(error), error) {
	wait, cancel := context.WithTimeout(ctx, acquireTimeout)
	defer cancel()
	select {
	case l.slots <- struct{}{}:
	case <-wait.Done():
		return nil, nil, errNoConnection
	}
	conn, err := l.pool.Acquire(wait)
	if err != nil {
		<-l.slots
		return nil, nil, err
	}
	release := func(err error) {
		if mustDiscard(err) {
			closing, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_ = conn.Conn().Close(closing) // it is broken; there is nobody to tell
		}
		conn.Release()
		if swallowed(err) {
			l.pool.Reset()
		}
		<-l.slots
	}
	return conn, release, nil
}

var errNoConnection = errors.New("no connection became free in time")

// budget is how long a statement may run now.
func (l *lane) budget(ctx context.Context) time.Duration {
	budget := l.statement
	if deadline, ok := store.PatienceEnds(ctx); ok {
		left := time.Until(deadline)
		budget = min(budget, left-answerReserve(left))
	}
	if budget < time.Millisecond && budget > -deadlineMargin {
		budget = time.Millisecond // 0 would mean no timeout
	}
	return budget
}

// inTx runs several dependent statements in one transaction, repeated like query.
func inTx(ctx context.Context, s *Store, l *lane, idempotent bool, run func(context.Context, pgx.Tx) error) error {
	return s.repeated(ctx, idempotent, func() (bool, error) { return attemptTx(ctx, l, run) })
}

func attemptTx(ctx context.Context, l *lane, run func(context.Context, pgx.Tx) error) (sent bool, err error) {
	conn, release, err := l.conn(ctx)
	if err != nil {
		return false, err
	}
	var broken error
	defer func() { release(broken) }()
	budget := l.budget(ctx)
	if budget <= 0 {
		return false, context.DeadlineExceeded
	}
	hard, cancel := context.WithTimeout(context.WithoutCancel(ctx), budget+networkMargin)
	defer cancel()
	tx, err := conn.Begin(hard)
	if err != nil {
		broken = err
		return false, err
	}
	defer func() { _ = tx.Rollback(hard) }() // after a commit it does nothing
	if _, err = tx.Exec(hard, sqlSettings, millis(budget), millis(min(budget, l.lock))); err == nil {
		err = run(hard, tx)
	}
	if err != nil {
		if !isDomain(err) {
			broken = err
		}
		// Nothing is committed before Commit, so a failure up to here did nothing.
		return false, err
	}
	if err = tx.Commit(hard); err != nil {
		broken = err
		return true, err
	}
	return true, nil
}

// isDomain tells errors that abort a transaction on purpose, most of the Store's contract.
func isDomain(err error) bool {
	var (
		followUp *store.FollowUpError
		state    *store.StateError
		job      *store.JobNotFoundError
		queue    *store.QueueNotFoundError
		exists   *store.QueueExistsError
		busy     *store.BusyError
		invalid  *store.InvalidError
	)
	return isNotTaken(err) || errors.As(err, &followUp) || errors.As(err, &state) || errors.As(err, &job) ||
		errors.As(err, &queue) || errors.As(err, &exists) || errors.As(err, &busy) || errors.As(err, &invalid)
}

func millis(d time.Duration) string {
	return strconv.FormatInt(max(1, d.Milliseconds()), 10)
}

// jittered spreads repetitions, so that callers that failed together do not meet again.
func jittered(d time.Duration) time.Duration {
	return d/2 + rand.N(d)
}

// sleep waits, and tells whether the caller is still there afterwards.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
