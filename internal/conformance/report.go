package conformance

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// Result is what is known of one rule.
type Result struct {
	Rule     string  `json:"rule"`
	Says     string  `json:"says"`
	Scenario string  `json:"scenario"`
	Verdict  Verdict `json:"verdict"`
	// Evidence names the call and when it came, counted from when the worker was started.
	Evidence string `json:"evidence"`
}

// Report has the rules that were judged, in a fixed order.
type Report struct {
	Rules []Result `json:"rules"`
}

// Passed tells whether every rule passed.
func (r Report) Passed() bool { return len(r.Rules) > 0 && r.count(Pass) == len(r.Rules) }

func (r Report) count(v Verdict) (n int) {
	for _, result := range r.Rules {
		if result.Verdict == v {
			n++
		}
	}
	return n
}

// Summary is the last line of the table.
func (r Report) Summary() string {
	return fmt.Sprintf("%d passed, %d failed, %d not seen", r.count(Pass), r.count(Fail), r.count(NotSeen))
}

// WriteTable writes a line for each rule, and the sum of them.
func (r Report) WriteTable(w io.Writer) error {
	var text strings.Builder
	for _, result := range r.Rules {
		fmt.Fprintf(&text, "%-8s  %-23s  %s: %s\n", result.Verdict, result.Rule, result.Scenario, result.Evidence)
		if result.Verdict != Pass {
			fmt.Fprintf(&text, "%35s%s\n", "", result.Says)
		}
	}
	fmt.Fprintln(&text, r.Summary())
	_, err := io.WriteString(w, text.String())
	return err
}

// WriteJSON writes the report as one object.
func (r Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(struct {
		Passed  int      `json:"passed"`
		Failed  int      `json:"failed"`
		NotSeen int      `json:"not_seen"`
		Rules   []Result `json:"rules"`
	}{r.count(Pass), r.count(Fail), r.count(NotSeen), r.Rules})
}
