package postgres_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/internal/privatepg"
	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/postgres"
)

// TestR48WhoHoldsBackVacuumIsFound: a session that sits in a transaction and a
// prepared transaction.
func TestR48WhoHoldsBackVacuumIsFound(t *testing.T) {
	t.Parallel()
	server := pgtest.ServerWith(t, privatepg.Config{Ephemeral: true, ExtraSettings: map[string]string{
		"max_prepared_transactions": "2",
	}})
	url := server.URL("postgres")
	if err := migrate(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	s, err := postgres.Open(t.Context(), postgres.Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	assert := func(want ...string) {
		t.Helper()
		held, err := s.HeldSnapshots(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, h := range held {
			got = append(got, h.Holder)
			if !strings.Contains(h.Name, "reporter") {
				t.Errorf("%s is named %q", h.Holder, h.Name)
			}
			if h.For <= 0 || h.Transactions <= 0 {
				t.Errorf("%+v has no age", h)
			}
		}
		if strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("held back by %q, want %q", got, want)
		}
	}
	assert()

	session := connect(t, url+"&application_name=reporter")
	tx, err := session.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	exec(t, tx, `SELECT count(*) FROM leasehold.jobs`)
	other := connect(t, url)
	exec(t, other, `BEGIN`)
	exec(t, other, `SELECT pg_current_xact_id()`)
	exec(t, other, `PREPARE TRANSACTION 'reporter'`)
	exec(t, other, `SELECT pg_current_xact_id()`) // the world goes on
	assert(store.HolderPrepared, store.HolderSession)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	assert(store.HolderPrepared)
	exec(t, other, `ROLLBACK PREPARED 'reporter'`)
	assert()
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

type execer interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func exec(t *testing.T, on execer, sql string) {
	t.Helper()
	rows, err := on.Query(t.Context(), sql)
	if err == nil {
		rows.Close()
		err = rows.Err()
	}
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}
