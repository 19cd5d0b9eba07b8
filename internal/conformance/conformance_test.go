package conformance_test

import (
	"bytes"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"github.com/leasehold/leasehold/internal/conformance"
)

func TestMain(m *testing.M) {
	if defect := os.Getenv(defectEnv); defect != "" {
		os.Exit(runWorker(defect))
	}
	goleak.VerifyTestMain(m)
}

// workersAtOnce run side by side; they sleep most of the time. Two start at once.
const workersAtOnce = 60

// checkAll runs each defect through everything.
func checkAll(t *testing.T, defects []string) map[string]conformance.Report {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	room, starts := make(chan struct{}, workersAtOnce), make(chan struct{}, 2)
	var mu sync.Mutex
	reports := map[string]conformance.Report{}
	group, ctx := errgroup.WithContext(t.Context())
	for _, defect := range defects {
		group.Go(func() error {
			report, err := conformance.Run(ctx, conformance.Shared(conformance.Config{
				// env hands the process over: a signal reaches the worker itself.
				Command: []string{"env", defectEnv + "=" + defect, program}, Grace: grace,
			}, room, starts))
			mu.Lock()
			defer mu.Unlock()
			reports[defect] = report
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	return reports
}

// verdicts are the rules with one of the verdicts.
func verdicts(r conformance.Report, v conformance.Verdict) (names []string) {
	for _, result := range r.Rules {
		if result.Verdict == v {
			names = append(names, result.Rule)
		}
	}
	return names
}

func table(t *testing.T, r conformance.Report) string {
	t.Helper()
	var text bytes.Buffer
	if err := r.WriteTable(&text); err != nil {
		t.Fatal(err)
	}
	return text.String()
}

// defects name the rule that each breaks. A worker without one breaks none.
var defects = map[string]string{
	"none":                      "",
	"does nothing":              "does-the-work",
	"hoards":                    "slots",
	"polls too often":           "idles-quietly",
	"never beats":               "beats-in-time",
	"beats rarely":              "beats-as-advised",
	"waits for its heartbeat":   "beats-through-hang",
	"gives up on an outage":     "beats-through-outage",
	"overstays its lease":       "stops-at-local-end",
	"beats on after a loss":     "loss-stops-calls",
	"completes after a loss":    "loss-stops-work",
	"ignores cancel":            "honours-cancel",
	"leases after SIGTERM":      "drain-stops-leasing",
	"exits without giving back": "drain-gives-back",
	"ignores SIGTERM":           "drain-exits",
	"forgets request_id":        "request-id",
	"sets no deadline":          "calls-have-deadlines",
	"hears no RetryInfo":        "backs-off",
	"dies of an acquire":        "survives-acquire-errors",
	"dies of a heartbeat":       "survives-beat-errors",
	"dies of an end":            "survives-end-errors",
	"completes once only":       "complete-is-repeated",
	"retries for ever":          "refusal-is-final",
}

// TestDefects: each rule is broken by a worker made for that, and by no other.
func TestDefects(t *testing.T) {
	t.Parallel()
	for defect, report := range checkAll(t, slices.Collect(maps.Keys(defects))) {
		rule := defects[defect]
		t.Run(strings.ReplaceAll(defect, " ", "_"), func(t *testing.T) {
			failed := verdicts(report, conformance.Fail)
			if rule == "" && !report.Passed() {
				t.Errorf("a good worker does not pass:\n%s", table(t, report))
			}
			if rule != "" && !slices.Equal(failed, []string{rule}) {
				t.Errorf("it fails in %q, want %q:\n%s", failed, rule, table(t, report))
			}
		})
	}
}

// TestEveryRuleCanFail: a rule that nobody breaks may be one that cannot be broken.
func TestEveryRuleCanFail(t *testing.T) {
	t.Parallel()
	var broken []string
	for _, rule := range defects {
		if rule != "" {
			broken = append(broken, rule)
		}
	}
	slices.Sort(broken)
	if all := slices.Sorted(slices.Values(conformance.Names(nil))); !slices.Equal(broken, all) {
		t.Errorf("rules %q, broken %q", all, broken)
	}
}
