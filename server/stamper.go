package server

import (
	"time"

	"github.com/leasehold/leasehold/internal/loop"
	"github.com/leasehold/leasehold/store"
)

const (
	// stampInterval: expiry needs a stamp younger than 3 s (R35), so one may fail without a
	// consequence.
	stampInterval = time.Second
	// stampTimeout: a stamp that waits longer has found a table that takes no heartbeats.
	stampTimeout = 2 * time.Second
	// stampStart is short because readiness waits for the first stamp.
	stampStart = 100 * time.Millisecond
)

// stampJob records, each second, that the service could write a heartbeat. While it cannot,
// no lease expires, whoever asks: workers are not blamed for a silence that the service
// caused. It comes back soon after a failure, because until the next stamp nothing expires.
func stampJob(st store.Maintenance) backgroundJob {
	return backgroundJob{runOnce: st.StampWritable, cfg: loop.Config{
		Name: "stamper", Interval: stampInterval, Timeout: stampTimeout,
		StartWithin: stampStart, RetryMax: stampInterval,
	}}
}
