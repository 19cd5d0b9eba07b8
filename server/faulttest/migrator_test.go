package faulttest

import (
	"context"
	"os/exec"
	"testing"

	"github.com/jackc/pgx/v5"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
)

// TestAMigratorThatIsKilledLeavesNothingHalfDone, at each step that it can be stopped at by a
// lock, and beside a stranger that is idle in a transaction.
func TestAMigratorThatIsKilledLeavesNothingHalfDone(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t, nil)
	stranger, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close(context.Background())
	for _, held := range []string{
		`CREATE SCHEMA IF NOT EXISTS leasehold; CREATE TABLE leasehold.service (id int)`,
		`CREATE SCHEMA IF NOT EXISTS leasehold; CREATE TABLE leasehold.jobs (id int)`,
		`CREATE SCHEMA IF NOT EXISTS leasehold; CREATE FUNCTION leasehold.state_word(smallint) RETURNS text LANGUAGE sql AS 'SELECT ''''::text'`,
	} {
		if _, err := stranger.Exec(t.Context(), "BEGIN; "+held); err != nil {
			t.Fatal(err)
		}
		migrator := exec.Command(binary, "migrate", "--database-url", url)
		if err := migrator.Start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the migrator waits for the stranger", func() bool {
			var waits bool
			err := stranger.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_locks l WHERE NOT l.granted AND pg_backend_pid() = ANY (pg_blocking_pids(l.pid)))`).Scan(&waits)
			return err == nil && waits
		})
		_ = migrator.Process.Kill()
		_ = migrator.Wait() // killed
		if _, err := stranger.Exec(t.Context(), "ROLLBACK"); err != nil {
			t.Fatal(err)
		}
		eventually(t, "its sessions have noticed", func() bool {
			var sessions int
			err := stranger.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'`).Scan(&sessions)
			return err == nil && sessions == 1
		})
	}
	if _, err := stranger.Exec(t.Context(), "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class"); err != nil {
		t.Fatal(err)
	}
	f := newFleet(t, url, 2) // both migrate
	q := opened(t, f, &pb.Queue{Name: "q"})
	oneOfEach(t, f.members[1], q, "key")
	if left := lookAll(t, f, `SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid`); len(left) > 0 {
		t.Errorf("invalid indexes are left: %q", left)
	}
	wantSound(t, f, false)
}
