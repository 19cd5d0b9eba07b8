package imports

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Options say how a mapping is run.
type Options struct {
	// Batch is how many rows a transaction takes over. 1..10000.
	Batch int
	// DryRun says what would be done, and changes nothing.
	DryRun bool
	// Progress is told after each batch, Left of each row that was not taken over.
	Progress func(Report)
	Left     func(key, why string)
}

// Report counts rows.
type Report struct {
	Total, Seen int
	// Taken are the jobs by their state.
	Taken map[string]int
	// Skipped are left because the mapping says so. Leased and Locked are being worked on, or
	// changed, by somebody else; Bad cannot be a job. All these are still in the table.
	Skipped, Leased, Locked, Bad int
}

// Unfinished tells whether rows are left that a later run may take over.
func (r *Report) Unfinished() bool { return r.Leased+r.Locked+r.Bad > 0 }

// RunningError says that an import of that name runs already.
type RunningError struct{ Name string }

func (e *RunningError) Error() string {
	return fmt.Sprintf("an import %q is running already", e.Name)
}

// run is one run over a table.
type run struct {
	conn   *pgx.Conn
	m      *Mapping
	o      Options
	sql    statements
	report Report
}

// Run takes over what is left of the table. It returns what it has done, also beside an error:
// batches that were committed stay.
func Run(ctx context.Context, conn *pgx.Conn, m *Mapping, o Options) (Report, error) {
	r := &run{conn: conn, m: m, o: o, report: Report{Taken: map[string]int{}}}
	if err := r.begin(ctx); err != nil {
		return r.report, err
	}
	for after := ""; ; {
		keys, err := r.page(ctx, after)
		if err != nil || len(keys) == 0 {
			return r.report, err
		}
		if err := r.takeAll(ctx, keys); err != nil {
			return r.report, err
		}
		after = keys[len(keys)-1]
		r.report.Seen += len(keys)
		o.Progress(r.report)
	}
}

func (r *run) begin(ctx context.Context) error {
	if _, err := r.conn.Exec(ctx, sqlSettings); err != nil {
		return err
	}
	var free bool
	if err := r.conn.QueryRow(ctx, sqlLock, r.m.Name).Scan(&free); err != nil {
		return err
	}
	if !free {
		return &RunningError{Name: r.m.Name}
	}
	var table, keyType string
	err := r.conn.QueryRow(ctx, sqlTable, r.m.Table, r.m.Key).Scan(&table, &keyType)
	if errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("table %s has no column %s", r.m.Table, r.m.Key)
	}
	if err != nil {
		return err
	}
	r.sql = newStatements(r.m, table, keyType)
	return r.conn.QueryRow(ctx, r.sql.count, r.m.Name).Scan(&r.report.Total)
}

// page are the keys of the next rows that have not been taken over.
func (r *run) page(ctx context.Context, after string) ([]string, error) {
	sql, args := r.sql.first, []any{r.m.Name, r.o.Batch}
	if after != "" {
		sql, args = r.sql.next, append(args, after)
	}
	rows, err := r.conn.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// takeAll takes rows over, one by one where one of them spoils the batch.
func (r *run) takeAll(ctx context.Context, keys []string) error {
	if !r.o.DryRun {
		if _, err := r.conn.Exec(ctx, sqlPartitions); err != nil {
			return err
		}
	}
	err := r.take(ctx, keys)
	if err == nil || !spoilt(err) {
		return err
	}
	for _, key := range keys {
		if err := r.take(ctx, []string{key}); spoilt(err) {
			r.report.Bad++
			r.o.Left(key, err.Error())
		} else if err != nil {
			return err
		}
	}
	return nil
}

// spoilt tells errors of an expression that a value of a row is to blame for.
func spoilt(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pgErr.Code[:2] == "22" || pgErr.Code[:2] == "23" || pgErr.Code == "54001")
}

// outcome is what became of a row.
type outcome struct{ Key, Outcome, Reason string }

// take is one transaction.
func (r *run) take(ctx context.Context, keys []string) error {
	var read batch
	var done []outcome
	err := pgx.BeginFunc(ctx, r.conn, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, r.sql.read, keys)
		if err != nil {
			return err
		}
		if read, err = r.m.collect(rows); err != nil {
			return err
		}
		rows, err = tx.Query(ctx, r.sql.take, append([]any{r.m.Name, r.o.DryRun, r.m.Expired}, read.args()...)...)
		if err != nil {
			return err
		}
		if done, err = pgx.CollectRows(rows, pgx.RowToStructByPos[outcome]); err != nil {
			return err
		}
		return r.remove(ctx, tx, done)
	})
	if err != nil {
		return err
	}
	r.note(keys, &read, done)
	return nil
}

// remove deletes the rows that were taken over, where the mapping says so.
func (r *run) remove(ctx context.Context, tx pgx.Tx, done []outcome) error {
	if r.m.After != deleteRows || r.o.DryRun {
		return nil
	}
	var gone []string
	for _, d := range done {
		if d.Outcome != "BAD" && d.Outcome != "LEASED" {
			gone = append(gone, d.Key)
		}
	}
	_, err := tx.Exec(ctx, r.sql.remove, gone)
	return err
}

// note counts and reports, once the transaction has been committed.
func (r *run) note(keys []string, read *batch, done []outcome) {
	r.report.Locked += len(keys) - read.seen
	r.report.Skipped += read.skipped
	for _, b := range read.bad {
		r.report.Bad++
		r.o.Left(b.Key, b.Reason)
	}
	for _, d := range done {
		switch d.Outcome {
		case "BAD":
			r.report.Bad++
			r.o.Left(d.Key, d.Reason)
		case "LEASED":
			r.report.Leased++
			r.o.Left(d.Key, "leased "+d.Reason)
		case "KNOWN":
		default:
			r.report.Taken[d.Outcome]++
		}
	}
}
