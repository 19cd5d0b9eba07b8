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
			report, err := conformance.Run(t.Context(), conformance.Config{Command: []string{l.command(t)}})
			if err != nil {
				t.Fatal(err)
			}
			var card strings.Builder
			if err := report.WriteTable(&card); err != nil {
				t.Fatal(err)
			}
			t.Logf("the report card of the %s worker:\n%s", l.name, card.String())
			if !report.Passed() {
				t.Error(report.Summary())
			}
		})
	}
}
