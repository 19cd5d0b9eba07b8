package servertest

import (
	"testing"

	"github.com/leasehold/leasehold/store/storetest"
)

// TestContract runs every rule of the store's contract through the API: each row of R17 and
// of section 6 is produced, and read back, by a client.
func TestContract(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) storetest.Harness { return newRemoteHarness(t) })
}

// TestRandomSequences runs random calls of the API against the pure model.
func TestRandomSequences(t *testing.T) {
	t.Parallel()
	storetest.RunRandom(t, func(t *testing.T) storetest.Harness { return newRemoteHarness(t) })
}
