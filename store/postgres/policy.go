package postgres

import (
	"strconv"
	"time"

	"github.com/leasehold/leasehold/store"
)

// policyRow are the policy columns of jobs, finished_jobs and queues; NULL is unset.
type policyRow struct {
	MaxAttempts          *int32
	MaxExpirations       *int32
	BackoffInitial       *time.Duration
	BackoffFactor        *float64
	BackoffCap           *time.Duration
	BackoffJitter        *float64
	LeaseDuration        *time.Duration
	MaxRuntime           *time.Duration
	StallTimeout         *time.Duration
	CancelGrace          *time.Duration
	IdempotencyRetention *time.Duration
}

func (r policyRow) policy() store.Policy { return store.Policy(r) }

func itoa(n int) string     { return strconv.Itoa(n) }
func itoa64(n int64) string { return strconv.FormatInt(n, 10) }
