package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/internal/bench"
	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
)

func TestBenchUsage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"no such workload":  {[]string{"--only", "frobnicate"}, "drain_many_1000"},
		"no pattern":        {[]string{"--only", "("}, "--only"},
		"no such format":    {[]string{"--format", "xml"}, "table or json"},
		"no URL":            {[]string{"--database-url", "host=/tmp password=hunter2secret"}, "must be a URL"},
		"several at a time": {[]string{"--only", "(", "--format", "xml"}, "--format"},
	} {
		code, stdout, stderr := runIn(t, nil, append([]string{"bench"}, c.args...)...)
		if code != exitUsage || stdout != "" || !strings.Contains(stderr, c.says) || strings.Contains(stderr, "hunter2secret") {
			t.Errorf("%s: exit code %d, want %d and %q:\n%s%s", name, code, exitUsage, c.says, stdout, stderr)
		}
	}
}

// tinyPlan measures nothing worth knowing, and is over soon.
func tinyPlan() bench.Plan {
	return bench.Plan{
		Rounds: 1, Warm: time.Millisecond, Round: 20 * time.Millisecond, WarmStretch: time.Millisecond, Spare: 200,
		Pickup: 50 * time.Millisecond, LeasesFew: 100, BeatEvery: 200 * time.Millisecond, Idle: 100 * time.Millisecond,
	}
}

// benchIn measures on the server of the tests, with the binary under test.
func benchIn(t *testing.T, only, format string, check bool) (stdout string, err error) {
	t.Helper()
	cfg := &benchConfig{
		Format: format, Check: check, DatabaseURL: pgtest.Shared(t).URL("postgres"),
		only: regexp.MustCompile(only), plan: tinyPlan(), binary: binary,
	}
	var out, said bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err = runBench(ctx, cfg, streams{out: &out, err: &said}, slog.New(slog.DiscardHandler))
	t.Logf("progress:\n%s", said.String())
	return out.String(), err
}

// TestBench measures some workloads with real processes, and leaves no database behind.
func TestBench(t *testing.T) {
	t.Parallel()
	t.Run("json", benchPrintsJSON)
	t.Run("check", benchChecks)
	if left := benchDatabases(t); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func benchPrintsJSON(t *testing.T) {
	out, err := benchIn(t, `^(drain_one_1$|enqueue_many_100$|pickup_100_|heartbeats_10k_|idle_)`, formatJSON, false)
	if err != nil {
		t.Fatal(err)
	}
	var rows []bench.Result
	if err := json.Unmarshal([]byte(out), &rows); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var names []string
	for _, r := range rows {
		names = append(names, r.Workload)
		if r.Unit == "" || r.Min < 0 || r.Median < r.Min || r.Max < r.Median {
			t.Errorf("a row that cannot be: %+v", r)
		}
		if hasLimit := strings.HasSuffix(r.Unit, "/s") && !strings.HasPrefix(r.Workload, "idle"); hasLimit && r.Limit == nil {
			t.Errorf("a row without its limit: %+v", r)
		}
	}
	if want := []string{
		"drain_one_1", "enqueue_many_100", "pickup_100_p50", "pickup_100_p99", "pickup_100_max",
		"heartbeats_10k_rate", "heartbeats_10k_hot", "heartbeats_10k_pg_cpu", "heartbeats_10k_ended", "idle_transactions", "idle_cpu",
	}; runtime.GOOS == "linux" && !slices.Equal(names, want) {
		t.Errorf("the rows are %v", names)
	}
}

// benchChecks: the exit code is 3 exactly where the table says that a bound is missed.
func benchChecks(t *testing.T) {
	out, err := benchIn(t, `^drain_many_100$`, formatTable, true)
	missed := strings.Contains(out, "below")
	if missed != (err != nil) || !strings.Contains(out, "drain_many_100") {
		t.Fatalf("error %v, the table is\n%s", err, out)
	}
	exit, is := errors.AsType[*exitError](err)
	if missed && (!is || exit.code != exitFound) {
		t.Errorf("the error is %v", err)
	}
}

func benchDatabases(t *testing.T) []string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), pgtest.Shared(t).URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	rows, err := conn.Query(t.Context(), `SELECT datname FROM pg_database WHERE datname LIKE 'leasehold\_bench%'`)
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return names
}
