package conformance

import (
	"slices"
	"testing"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/internal/doctest"
)

// TestDocumentHasEveryRule, in the order of the report and in the same words, each with its reasons.
func TestDocumentHasEveryRule(t *testing.T) {
	t.Parallel()
	document := doctest.Read(t, "docs/conformance.md")
	var told []string
	for _, row := range document.Table(t, "Rules") {
		name := doctest.Words(row[0])[0]
		told = append(told, name)
		at := slices.IndexFunc(rules, func(r rule) bool { return r.name == name })
		if at < 0 {
			continue
		}
		where := "all"
		if rules[at].scenario != "" {
			where = "`" + rules[at].scenario + "`"
		}
		if row[1] != rules[at].says || row[2] != where {
			t.Errorf("%s: the document says %q in %s, the rule %q in %s", name, row[1], row[2], rules[at].says, where)
		}
		if !slices.Contains(document.Headings(), name) {
			t.Errorf("%s has no section", name)
		}
	}
	if !slices.Equal(told, Names(nil)) {
		t.Errorf("the document has %q, the report %q", told, Names(nil))
	}
}

// TestRulesHaveScenarios: a rule of a scenario that is not played would never be judged.
func TestRulesHaveScenarios(t *testing.T) {
	t.Parallel()
	played := map[string]bool{"": true}
	for _, sc := range scenarios {
		played[sc.name] = true
	}
	for _, r := range rules {
		if !played[r.scenario] {
			t.Errorf("%s is judged in %q, which is never played", r.name, r.scenario)
		}
	}
}

// TestEveryReasonIsAnswered somewhere, as the contract may answer it to a worker.
func TestEveryReasonIsAnswered(t *testing.T) {
	t.Parallel()
	answered := slices.Concat(acquireErrors, beatErrors, endErrors, refusedEnds, losses)
	for number, name := range pb.ErrorReason_name {
		reason := pb.ErrorReason(number)
		if reason == pb.ErrorReason_ERROR_REASON_UNSPECIFIED || reason == pb.ErrorReason_ERROR_REASON_QUEUE_EXISTS {
			continue // never sent; and answered to CreateQueue alone
		}
		if _, known := refusalCodes[reason]; !known {
			t.Errorf("%s has no code", name)
		}
		if !slices.Contains(answered, reason) {
			t.Errorf("%s is answered to no call", name)
		}
	}
}
