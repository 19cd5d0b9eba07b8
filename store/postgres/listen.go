package postgres

import (
	"context"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/store"
)

// hintBytes keeps a payload under NOTIFY's limit of 8,000 bytes.
const hintBytes = 7000

// The channel carries names of queues that may have ready jobs. Hints are best effort and
// debounced: polling is the truth.
const (
	sqlHint   = `SELECT pg_notify('leasehold_hint', u.payload)::text FROM unnest($1::text[]) AS u(payload)`
	sqlListen = `LISTEN leasehold_hint`
)

// pingInterval is how often an idle listening connection is tried, because a half-open one
// never says a word.
const (
	pingInterval = 15 * time.Second
	tripTimeout  = 5 * time.Second
)

// Hint tells other replicas that queues may have ready jobs.
func (s *Store) Hint(ctx context.Context, queues []string) error {
	var payloads []string
	var current strings.Builder
	for _, q := range queues {
		if current.Len()+len(q)+1 > hintBytes {
			payloads = append(payloads, current.String())
			current.Reset()
		}
		if current.Len() > 0 {
			current.WriteByte(' ')
		}
		current.WriteString(q)
	}
	payloads = append(payloads, current.String())
	_, err := query(ctx, s, unit{lane: s.work, sql: sqlHint, args: []any{payloads}, idempotent: true}, pgx.RowTo[string])
	return err
}

// Listen calls onHint for each hint until the context ends or the connection is lost, on a
// connection of its own to the server itself.
func (s *Store) Listen(ctx context.Context, onReady func(), onHint func(queues []string)) error {
	conn, err := pgx.ConnectConfig(ctx, s.direct)
	if err != nil {
		return &store.UnavailableError{Cause: err}
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(closing) // nothing is pending on it
	}()
	listen := func(ctx context.Context) error { _, err := conn.Exec(ctx, sqlListen); return err }
	if err := soon(ctx, listen); err != nil {
		return err
	}
	onReady()
	for {
		wait, cancel := context.WithTimeout(ctx, pingInterval)
		n, err := conn.WaitForNotification(wait)
		cancel()
		switch {
		case err == nil:
			onHint(strings.Fields(n.Payload))
		case ctx.Err() != nil:
			return ctx.Err()
		case conn.IsClosed():
			return &store.UnavailableError{Cause: err}
		default:
			if err := soon(ctx, conn.Ping); err != nil {
				return err
			}
		}
	}
}

// soon makes a round trip that must not take long: a half-open connection never answers.
func soon(ctx context.Context, trip func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, tripTimeout)
	defer cancel()
	if err := trip(limited); err != nil {
		return &store.UnavailableError{Cause: err}
	}
	return nil
}
