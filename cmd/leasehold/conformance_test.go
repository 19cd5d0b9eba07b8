package main

import (
	"context"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/leasehold/leasehold/internal/conformance"
	"github.com/leasehold/leasehold/internal/doctest"
)

// conformancePatience bounds a whole check. It takes half a minute.
const conformancePatience = 5 * time.Minute

// buildExample builds the program of a folder of examples.
func buildExample(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	build := exec.CommandContext(t.Context(), "go", "build", "-o", path, "./examples/"+name)
	build.Dir = doctest.Root(t)
	if said, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	return path
}

// conform runs a check and returns its exit code, the report, and what else it said.
func conform(t *testing.T, args ...string) (code int, report, said string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), conformancePatience)
	defer cancel()
	var out, err strings.Builder
	code = run(ctx, append([]string{"conformance"}, args...), streams{out: &out, err: &err}, func(string) (string, bool) { return "", false })
	return code, out.String(), err.String()
}

// TestConformanceOfTheGoWorker: the worker of examples/go passes every rule.
func TestConformanceOfTheGoWorker(t *testing.T) {
	t.Parallel()
	code, report, said := conform(t, "--", buildExample(t, "go"))
	if code != exitDone || strings.Count(report, "\nPASS ")+1 != len(conformance.Names(nil)) {
		t.Errorf("exit code %d\n%s%s", code, said, report)
	}
}

// TestConformanceFindsAFault: a worker that has less time after SIGTERM than it takes fails in the
// rule about that, by exit code 3.
func TestConformanceFindsAFault(t *testing.T) {
	t.Parallel()
	code, report, said := conform(t, "--rule", "^drain-exits$", "--grace", "1s", "--format", "json", "--", buildExample(t, "go"))
	var got struct {
		Passed, Failed int
		NotSeen        int `json:"not_seen"`
		Rules          []struct{ Rule, Says, Scenario, Verdict, Evidence string }
	}
	if err := json.Unmarshal([]byte(report), &got); err != nil {
		t.Fatalf("%v: %s", err, report)
	}
	if code != exitFound || got.Failed != 1 || got.Passed != 0 || got.NotSeen != 0 || len(got.Rules) != 1 ||
		got.Rules[0].Rule != "drain-exits" || got.Rules[0].Verdict != "FAIL" || !strings.Contains(got.Rules[0].Evidence, "1s after SIGTERM") {
		t.Errorf("exit code %d\n%s%s", code, said, report)
	}
}

// TestConformanceUsage: what cannot be checked is told apart from what fails.
func TestConformanceUsage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args []string
		code int
		says string
	}{
		"no command":       {nil, exitUsage, "a command is needed"},
		"no such rule":     {[]string{"--rule", "manners", "--", "true"}, exitUsage, `no rule matches "manners"`},
		"a bad expression": {[]string{"--rule", "(", "--", "true"}, exitUsage, "--rule"},
		"no such format":   {[]string{"--format", "xml", "--", "true"}, exitUsage, "xml"},
		"a long grace":     {[]string{"--grace", "1h", "--", "true"}, exitUsage, "grace"},
		"no such program":  {[]string{"--", "/nowhere/worker"}, exitFailed, "/nowhere/worker"},
		"no worker":        {[]string{"--rule", "slots", "--", "sh", "-c", "echo hello; exit 7"}, exitFailed, "exit status 7; it said:\nhello"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, report, said := conform(t, c.args...)
			if code != c.code || !strings.Contains(said, c.says) || report != "" {
				t.Errorf("exit code %d, want %d and %q:\n%s%s", code, c.code, c.says, report, said)
			}
		})
	}
}

// TestConformanceShowsWhatTheWorkerSays, line by line behind the scenario.
func TestConformanceShowsWhatTheWorkerSays(t *testing.T) {
	t.Parallel()
	_, _, said := conform(t, "--verbose", "--rule", "^slots$", "--", "sh", "-c", "echo one; echo two; env | grep ^LEASEHOLD_ | sort")
	for _, want := range []string{"steady: one\n", "steady: two\n", "steady: LEASEHOLD_ADDRESS=127.0.0.1:", "steady: LEASEHOLD_QUEUE=conformance\n", "steady: LEASEHOLD_SLOTS=3\n"} {
		if !strings.Contains(said, want) {
			t.Errorf("no %q in:\n%s", want, said)
		}
	}
}
