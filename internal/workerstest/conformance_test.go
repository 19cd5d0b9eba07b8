//go:build workers

package workerstest

import (
	"strings"
	"testing"

	"github.com/leasehold/leasehold/internal/conformance"
)

// TestConformance: the worker of each language passes every rule.
func TestConformance(t *testing.T) {
	t.Parallel()
	for _, l := range languages {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			passed := l.judged(t)
			if !passed { // rules are about moments, and the machine may have been busy in one
				passed = l.judged(t)
			}
			if !passed {
				t.Errorf("the %s worker does not pass", l.name)
			}
		})
	}
}

// judged runs the worker through all scenarios, and logs its report card.
func (l language) judged(t *testing.T) bool {
	t.Helper()
	report, err := conformance.Run(t.Context(), conformance.Config{Command: []string{l.command(t)}})
	if err != nil {
		t.Fatal(err)
	}
	var card strings.Builder
	if err := report.WriteTable(&card); err != nil {
		t.Fatal(err)
	}
	t.Logf("the report card of the %s worker:\n%s", l.name, card.String())
	return report.Passed()
}
