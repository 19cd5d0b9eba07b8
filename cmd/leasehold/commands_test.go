package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
)

func TestExitCodes(t *testing.T) {
	t.Parallel()
	nobody := "postgres://u:hunter2secret@" + freeAddress(t) + "/d?sslmode=disable"
	for name, c := range map[string]struct {
		args []string
		code int
		says string
	}{
		"version":                    {[]string{"version"}, exitDone, "schema"},
		"help":                       {[]string{"--help"}, exitDone, "LEASEHOLD_"},
		"help of serve":              {[]string{"serve", "--help"}, exitDone, "--watcher-interval"},
		"no such command":            {[]string{"sevre"}, exitUsage, "sevre"},
		"no command":                 {nil, exitUsage, "leasehold [command]"},
		"no such flag":               {[]string{"serve", "--frobnicate"}, exitUsage, "frobnicate"},
		"value of the wrong type":    {[]string{"serve", "--pool-size", "many"}, exitUsage, "pool-size"},
		"an argument too many":       {[]string{"serve", "now"}, exitUsage, "now"},
		"serve without a database":   {[]string{"serve"}, exitUsage, "--database-url"},
		"migrate without a database": {[]string{"migrate"}, exitUsage, "--database-url"},
		"migrate, nobody there":      {[]string{"migrate", "--database-url", nobody}, exitFailed, "refused"},
		"check, nobody there":        {[]string{"migrate", "--check", "--database-url", nobody}, exitFailed, "refused"},
		"proto without a folder":     {[]string{"proto"}, exitUsage, "--out"},
		"proto into a file":          {[]string{"proto", "--out", "/dev/null"}, exitFailed, "/dev/null"},
		"dev with both":              {[]string{"dev", "--ephemeral", "--data-dir", "x"}, exitUsage, "exclude each other"},
		"dev with a database":        {[]string{"dev", "--database-url", "x"}, exitUsage, "database-url"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, stdout, stderr := runIn(t, nil, c.args...)
			if code != c.code || !strings.Contains(stdout+stderr, c.says) {
				t.Errorf("exit code %d, want %d and %q:\n%s%s", code, c.code, c.says, stdout, stderr)
			}
			if strings.Contains(stdout+stderr, "hunter2secret") {
				t.Errorf("the password is shown:\n%s%s", stdout, stderr)
			}
		})
	}
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t, nil)
	for _, step := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"migrate", "--check"}, exitFound, "leasehold migrate"},
		{[]string{"serve", "--migrate=check", "--listen=127.0.0.1:0", "--http=127.0.0.1:0"}, exitFailed, "leasehold migrate"},
		{[]string{"migrate"}, exitDone, "migrated the schema to version"},
		{[]string{"migrate"}, exitDone, "nothing to do"},
		{[]string{"migrate", "--check"}, exitDone, "the schema is at version"},
	} {
		code, stdout, stderr := runIn(t, map[string]string{"LEASEHOLD_DATABASE_URL": url}, step.args...)
		if code != step.code || !strings.Contains(stdout+stderr, step.says) {
			t.Errorf("%v: exit code %d, want %d and %q:\n%s%s", step.args, code, step.code, step.says, stdout, stderr)
		}
	}
	makeNewer(t, url)
	for _, args := range [][]string{
		{"migrate"},
		{"serve", "--listen=127.0.0.1:0", "--http=127.0.0.1:0"},
		{"serve", "--migrate=check", "--listen=127.0.0.1:0", "--http=127.0.0.1:0"},
	} {
		code, stdout, stderr := runIn(t, map[string]string{"LEASEHOLD_DATABASE_URL": url}, args...)
		if code != exitFailed || !strings.Contains(stderr, "newer") {
			t.Errorf("%v on a newer schema: exit code %d\n%s%s", args, code, stdout, stderr)
		}
	}
}

// makeNewer lets the schema look as if a later binary had migrated it.
func makeNewer(t *testing.T, url string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, `INSERT INTO leasehold.schema_versions (version_id, is_applied) VALUES (9999, true)`); err != nil {
		t.Fatal(err)
	}
}

func TestR6_ProtoWritesWhatItNames(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "made", "on the way")
	code, stdout, stderr := runIn(t, nil, "proto", "--out", dir)
	if code != exitDone {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	names := strings.Fields(strings.ReplaceAll(stdout, "on the way", "on-the-way"))
	if len(names) < 6 {
		t.Errorf("it names %v", names)
	}
	for _, name := range names {
		text, err := os.ReadFile(strings.ReplaceAll(name, "on-the-way", "on the way"))
		if err != nil || strings.Contains(string(text), "buf/validate") || !strings.Contains(string(text), "package leasehold.v1;") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
