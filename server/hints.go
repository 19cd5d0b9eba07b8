package server

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasehold/leasehold/store"
)

const (
	// hintInterval is the least time between two hints: a notification takes one lock for
	// the whole database server, so one per enqueue would cost a multiple of the enqueue.
	hintInterval = 50 * time.Millisecond
	// hintTimeout bounds one; a late hint is worth nothing, the others poll each second.
	hintTimeout = time.Second
	// maxHinted is how many queues wait for the next hint. Those beyond it are left to polls.
	maxHinted = 1000
	// listenAgain and listenAgainMax bound the pause before listening again. A lost listener
	// is back well within 30 s, and a database that refuses it is not asked in a tight loop.
	listenAgain    = 500 * time.Millisecond
	listenAgainMax = 15 * time.Second
)

// hintSender tells other replicas which queues may have ready jobs: the first at once, what
// comes within the interval together in the next.
type hintSender struct {
	store  store.Maintenance
	log    *slog.Logger
	signal chan struct{}

	mu      sync.Mutex
	pending map[string]bool
}

func newHintSender(st store.Maintenance, log *slog.Logger) *hintSender {
	return &hintSender{store: st, log: log, signal: make(chan struct{}, 1), pending: map[string]bool{}}
}

// add puts a queue into the next hint. It never blocks.
func (h *hintSender) add(queue string) {
	h.mu.Lock()
	if len(h.pending) < maxHinted {
		h.pending[queue] = true
	}
	h.mu.Unlock()
	signal(h.signal)
}

func (h *hintSender) take() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	names := make([]string, 0, len(h.pending))
	for name := range h.pending {
		names = append(names, name)
	}
	clear(h.pending)
	slices.Sort(names)
	return names
}

// Run sends hints until the context ends.
func (h *hintSender) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-h.signal:
		}
		if err := guard(func() error { return h.send(ctx) }); err != nil && ctx.Err() == nil {
			h.log.DebugContext(ctx, "hint to other replicas failed", "error", err)
		}
		if !sleep(ctx, hintInterval) {
			return nil
		}
	}
}

func (h *hintSender) send(ctx context.Context) error {
	queues := h.take()
	if len(queues) == 0 {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, hintTimeout)
	defer cancel()
	return h.store.Hint(bounded, queues)
}

// hintListener wakes waiters by the hints of other replicas. A lost listener costs up to a
// second of latency, until the next poll, and nothing else.
type hintListener struct {
	store   store.Maintenance
	waiters *waiters
	poll    *pollLoop
	log     *slog.Logger
}

// Run listens until the context ends, again after each loss of the connection.
func (l *hintListener) Run(ctx context.Context) error {
	failures := 0
	for {
		var listened atomic.Bool
		err := guard(func() error {
			return l.store.Listen(ctx, func() {
				listened.Store(true)
				l.poll.look() // for what was hinted while nobody listened
			}, l.hinted)
		})
		if ctx.Err() != nil {
			return nil
		}
		failures++
		if listened.Load() {
			failures = 1
		}
		wait := backoff(listenAgain, listenAgainMax, failures)
		l.log.WarnContext(ctx, "the listener for hints of other replicas stopped", "error", err, "again_in", wait)
		if !sleep(ctx, wait) {
			return nil
		}
	}
}

func (l *hintListener) hinted(queues []string) {
	for _, queue := range queues {
		l.waiters.wakeSome(queue, fanOut)
	}
}
