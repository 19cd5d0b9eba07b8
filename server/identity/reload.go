package identity

import (
	"context"
	"crypto/sha256"
	"time"
)

// lastRead remembers what a file held, so that a change, and each fault, is acted on once. It
// is used by one goroutine.
type lastRead struct{ sum [32]byte }

func (l *lastRead) changed(text []byte) bool {
	sum := sha256.Sum256(text)
	if sum == l.sum {
		return false
	}
	l.sum = sum
	return true
}

// Watched is what has files that may change. Pass looks at them and logs what is wrong.
type Watched interface{ Pass(ctx context.Context) }

// Watch makes passes over what is watched, until ctx ends. Files are compared by content
// rather than by time or by events: Kubernetes swaps folders behind links, and network file
// systems tell of nothing.
func Watch(ctx context.Context, watched ...Watched) {
	tick := time.NewTicker(reloadEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, w := range watched {
			w.Pass(ctx)
		}
	}
}
