//go:build full

package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/leasehold/leasehold/internal/replica"
)

// binary is the service, built once.
var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "leasehold-ha-test-")
	if err == nil {
		binary, err = replica.Build(context.Background(), dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// play plays a trial and returns its report.
func play(t *testing.T, args ...string) string {
	t.Helper()
	var out strings.Builder
	code := run(t.Context(), append(args, "-leasehold", binary, "-duration", "8s", "-workers", "8"), &out)
	if code != 0 || !strings.Contains(out.String(), "PASS  "+args[0]) {
		t.Errorf("exit code %d:\n%s", code, out.String())
	}
	t.Log(out.String())
	return out.String()
}

// TestARollingRestartReachesNoWorker: three replicas restarted in turn behind round-robin clients.
func TestARollingRestartReachesNoWorker(t *testing.T) { play(t, "rolling") }

// TestAFailoverLosesNothing that was confirmed with a synchronous standby, needs no restart, and
// nobody goes back to the old primary.
func TestAFailoverLosesNothing(t *testing.T) { play(t, "failover") }

// TestAnAsynchronousStandbyLosesWhatItHasNotHeard: the trial can tell that something was lost.
func TestAnAsynchronousStandbyLosesWhatItHasNotHeard(t *testing.T) {
	if out := play(t, "failover", "-async"); strings.Contains(out, " 0 jobs, 0 leases, 0 ends") {
		t.Errorf("two seconds of work were cut off and nothing is missing:\n%s", out)
	}
}

// TestAnUpgradeFromAnotherBinary plays the upgrade with this version in both places: what is
// exchanged, when and under what load is the same. make upgrade has the true version before.
func TestAnUpgradeFromAnotherBinary(t *testing.T) { play(t, "upgrade", "-before", binary) }

// TestWrongUsage ends with exit code 2.
func TestWrongUsage(t *testing.T) {
	for _, args := range [][]string{nil, {"nothing"}, {"rolling", "-workers", "0"}, {"rolling", "more"}, {"rolling", "-x"}} {
		var out strings.Builder
		if code := run(t.Context(), args, &out); code != 2 || out.Len() == 0 {
			t.Errorf("%q: exit code %d, %q", args, code, out.String())
		}
	}
}
