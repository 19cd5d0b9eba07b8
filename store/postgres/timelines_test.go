package postgres

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/internal/privatepg"
	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
)

func TestALowerTimelineOfTheSameClusterIsRefused(t *testing.T) {
	t.Parallel()
	left := 0
	seen := newTimelines(slog.New(slog.DiscardHandler))
	seen.left = func() { left++ }
	for _, c := range []struct {
		cluster  string
		timeline uint64
		stale    bool
		left     int
	}{
		{"a", 1, false, 0}, {"a", 1, false, 0}, {"a", 2, false, 1}, {"a", 1, true, 1}, {"b", 1, false, 1}, {"a", 2, false, 1}, {"a", 10, false, 2}, {"a", 9, true, 2},
	} {
		err := seen.see(c.cluster, c.timeline)
		var stale *staleError
		if errors.As(err, &stale) != c.stale || left != c.left {
			t.Errorf("%s %d: %v, left %d times", c.cluster, c.timeline, err, left)
		}
	}
}

// TestAnOldPrimaryIsRefused, by a session that passes target_session_attrs, also for a user who
// has no rights but to connect; a standby is no old primary.
func TestAnOldPrimaryIsRefused(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "leasehold-timelines-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { // PostgreSQL may run under another account
		t.Fatal(err)
	}
	primary := pgtest.Server(t)
	owner, err := pgx.Connect(t.Context(), primary.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer owner.Close(t.Context())
	if _, err := owner.Exec(t.Context(), `CREATE ROLE plain LOGIN PASSWORD 'plain'`); err != nil {
		t.Fatal(err)
	}
	standby, err := privatepg.StartStandby(t.Context(), primary, "", privatepg.Config{DataDir: filepath.Join(dir, "standby")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := standby.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	seen := newTimelines(slog.New(slog.DiscardHandler))
	reach := func(s *privatepg.Server) error {
		t.Helper()
		cc, err := pgx.ParseConfig(s.URL("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		cc.User, cc.Password = "plain", "plain"
		seen.guard(cc)
		conn, err := pgx.ConnectConfig(t.Context(), cc)
		if err == nil {
			_ = conn.Close(t.Context())
		}
		return err
	}
	if err := errors.Join(reach(primary), reach(standby)); err != nil {
		t.Fatal(err)
	}
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := reach(primary); err != nil {
		t.Errorf("who has not seen the new one cannot know: %v", err)
	}
	if err := reach(standby); err != nil {
		t.Fatal(err)
	}
	if err := reach(primary); err == nil || !strings.Contains(err.Error(), "old primary") {
		t.Errorf("the old primary: %v", err)
	}
}
