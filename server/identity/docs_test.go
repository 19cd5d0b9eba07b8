package identity

import (
	"testing"

	"github.com/leasehold/leasehold/internal/doctest"
)

// TestTheGuidesAccessFileIsGood: what docs/security.md shows is read by the real parser.
func TestTheGuidesAccessFileIsGood(t *testing.T) {
	t.Parallel()
	blocks := doctest.Read(t, "docs/security.md").Blocks("yaml")
	if len(blocks) != 1 {
		t.Fatalf("%d access files", len(blocks))
	}
	e, err := parseAccess([]byte(blocks[0].Text))
	if err != nil {
		t.Fatal(err)
	}
	if len(e.tokens) != 2 || len(e.certificates) != 3 || len(e.issuers) != 1 || len(e.issuers[0].Rules) != 2 {
		t.Errorf("got %+v", e)
	}
}
