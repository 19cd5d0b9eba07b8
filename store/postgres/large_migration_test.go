//go:build large

package postgres

import (
	"testing"
	"time"
)

// TestLargeMigrationsKeepNobodyWaiting on 5 million live jobs, beside a transaction that is idle
// for a minute.
func TestLargeMigrationsKeepNobodyWaiting(t *testing.T) {
	const bound = 5 * time.Second // a tenth of that is lockTry; the rest is a busy machine's
	if longest := migrateBesideAnIdleTransaction(t, 5_000_000, time.Minute); longest > bound {
		t.Errorf("a call took %v, at most %v is meant", longest, bound)
	}
}
