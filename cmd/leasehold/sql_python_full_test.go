//go:build full

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/leasehold/leasehold/internal/doctest"
)

// TestSQLGuideFromPython runs the guide's program: a booking and its job are committed together,
// and a refused job leaves the booking to the program.
func TestSQLGuideFromPython(t *testing.T) {
	t.Parallel()
	g := newSQLGuide(t)
	g.run(t, "Write under a lease")
	program := filepath.Join(t.TempDir(), "book.py")
	if err := os.WriteFile(program, []byte(g.Blocks("python")[0].Text), 0o600); err != nil {
		t.Fatal(err)
	}
	psycopg, err := filepath.Glob(filepath.Join(doctest.Root(t), ".tools", "psycopg-*"))
	if err != nil || len(psycopg) == 0 {
		t.Fatal("there is no psycopg: make test-full fetches it")
	}
	psql(t, g.shop, `SELECT leasehold.enqueue('payments', '"another"', idempotency_key => 'booking/3')`)
	for _, step := range []struct {
		id    string
		says  string
		fails bool
	}{
		{id: "1", says: "created: True"},
		{id: "1", says: "duplicate key value", fails: true}, // the whole transaction is undone
		{id: "2", says: "created: True"},
		{id: "3", says: "refused: LH005 IDEMPOTENCY_KEY_REUSED"},
	} {
		cmd := exec.CommandContext(t.Context(), "python3", program, step.id, "500")
		cmd.Env = append(os.Environ(), "DATABASE_URL="+g.shop, "PYTHONPATH="+psycopg[len(psycopg)-1])
		said, err := cmd.CombinedOutput()
		if (err != nil) != step.fails || !strings.Contains(string(said), step.says) {
			t.Errorf("booking %s: %v, it says\n%s", step.id, err, said)
		}
	}
	conn := connect(t, g.owner)
	got := sqlValue[string](t, conn, `SELECT string_agg(subject || ' ' || payload, ', ' ORDER BY id) FROM leasehold.all_jobs WHERE subject LIKE 'booking/%'`)
	if want := `booking/1 {"id": 1, "amount": 500}, booking/2 {"id": 2, "amount": 500}`; got != want {
		t.Errorf("there are the jobs %s, want %s", got, want)
	}
	if n := sqlValue[int](t, conn, `SELECT count(*)::int FROM shop.bookings`); n != 3 {
		t.Errorf("%d bookings, want 3", n)
	}
}
