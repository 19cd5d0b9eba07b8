package privatepg

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// TestAStandbyFollowsAndIsPromoted: what the primary has answered with a synchronous standby is
// there when that is promoted, and the standby outlives the primary.
func TestAStandbyFollowsAndIsPromoted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	stopped := func(s *Server) {
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if err := s.Stop(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	primary, err := Start(ctx, Config{Ephemeral: true})
	if err != nil {
		t.Fatal(err)
	}
	stopped(primary)
	cfg := Config{DataDir: filepath.Join(folder(t), "standby")}
	standby, err := StartStandby(ctx, primary, "", cfg)
	if err != nil {
		t.Fatal(err)
	}
	stopped(standby)
	on := func(s *Server, sql string) string {
		t.Helper()
		conn, err := pgx.Connect(ctx, s.URL(superuser))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close(ctx) }()
		var answer string
		if err := conn.QueryRow(ctx, sql).Scan(&answer); err != nil && !errors.Is(err, pgx.ErrNoRows) {
			t.Fatalf("%s: %v", sql, err)
		}
		return answer
	}
	if got := on(standby, `SELECT pg_is_in_recovery()::text`); got != "true" {
		t.Errorf("the standby is no standby: %s", got)
	}
	if err := primary.AwaitStandby(ctx); err != nil {
		t.Fatal(err)
	}
	on(primary, `CREATE TABLE t (n int)`)
	on(primary, `INSERT INTO t VALUES (1)`)
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := standby.Promote(ctx); err != nil {
		t.Fatal(err)
	}
	on(standby, `INSERT INTO t VALUES (2)`)
	if got := on(standby, `SELECT sum(n)::text FROM t`); got != "3" {
		t.Errorf("the promoted server answers %s", got)
	}
}
