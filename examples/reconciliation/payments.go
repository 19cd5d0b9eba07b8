package main

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// createPayments makes the tables of the application. entries is its ledger: a row for each time
// that a payment was settled, without a constraint that would hide a second one.
const createPayments = `
CREATE TABLE IF NOT EXISTS payments (
    id text PRIMARY KEY,
    amount bigint NOT NULL,
    state text NOT NULL CHECK (state IN ('open', 'settled'))
);
CREATE TABLE IF NOT EXISTS entries (
    payment_id text NOT NULL REFERENCES payments (id),
    amount bigint NOT NULL,
    job_id text NOT NULL,
    lease_no bigint NOT NULL
)`

// openPayments tells which of some payments are open here. It reads by the primary key.
const openPayments = `SELECT id FROM payments WHERE id = ANY ($1) AND state = 'open'`

// settlePayment settles a payment and books it, or does neither where it is not open: the row lock
// of the UPDATE lets two at once through one after the other, and the second finds it settled.
const settlePayment = `
WITH settled AS (
    UPDATE payments SET state = 'settled' WHERE id = $1 AND state = 'open' RETURNING id
)
INSERT INTO entries (payment_id, amount, job_id, lease_no)
SELECT id, $2, $3, $4 FROM settled`

// payments is the database of the application.
type payments struct{ pool *pgxpool.Pool }

func connectPayments(ctx context.Context, url string) (*payments, error) {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return nil, err
	}
	if _, err := pool.Exec(ctx, createPayments); err != nil {
		pool.Close()
		return nil, err
	}
	return &payments{pool: pool}, nil
}

func (p *payments) close() { p.pool.Close() }

// open are those of list that are open here, in the order of list.
func (p *payments) open(ctx context.Context, list []payment) (out []payment, err error) {
	ids := make([]string, len(list))
	for i, one := range list {
		ids[i] = one.ID
	}
	rows, err := p.pool.Query(ctx, openPayments, ids)
	if err != nil {
		return nil, err
	}
	open, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, err
	}
	is := map[string]bool{}
	for _, id := range open {
		is[id] = true
	}
	for _, one := range list {
		if is[one.ID] {
			out = append(out, one)
		}
	}
	return out, nil
}

// settle is false where the payment was settled before.
func (p *payments) settle(ctx context.Context, one payment, jobID string, leaseNo int64) (bool, error) {
	tag, err := p.pool.Exec(ctx, settlePayment, one.ID, one.Amount, jobID, leaseNo)
	return tag.RowsAffected() == 1, err
}

// seedPayment makes a payment that this side knows.
const seedPayment = `INSERT INTO payments (id, amount, state) VALUES ($1, $2, $3) ON CONFLICT (id) DO NOTHING`

// seed makes the payments of a demonstration: most were settled when they were made; of every third
// the answer of the provider was lost.
func (p *payments) seed(ctx context.Context, list []payment) error {
	batch := &pgx.Batch{}
	for i, one := range list {
		state := "settled"
		if i%3 == 0 {
			state = "open"
		}
		batch.Queue(seedPayment, one.ID, one.Amount, state)
	}
	return p.pool.SendBatch(ctx, batch).Close()
}
