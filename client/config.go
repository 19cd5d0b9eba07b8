package client

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
)

const (
	defaultConcurrency = 10
	maxConcurrency     = 10_000
	defaultWait        = 20 * time.Second
	maxWait            = 60 * time.Second
	defaultGrace       = 20 * time.Second
	maxQueues          = 100
	maxOwnerBytes      = 256
	minLease, maxLease = time.Second, 12 * time.Hour
)

// WorkerConfig says what a Worker does. Queues and Handler are required; the zero value of the rest
// is usable.
type WorkerConfig struct {
	// Queues to take jobs from, the most preferred first; 1..100 different names. All must exist,
	// unless the service makes queues by itself; while one does not, no job is leased, and the log
	// says so.
	Queues []string
	// Handler does the work of one job. JSON and Proto make typed ones, ByQueue one for many queues.
	Handler Handler
	// Concurrency is how many jobs the worker holds at once, 1..10,000. Each has a goroutine; for
	// work that computes rather than waits, give no more than there are processors, or heartbeats
	// wait for their turn. Default: 10.
	Concurrency int
	// Owner names this worker instance in the history of leases, for diagnosis; it proves nothing.
	// 1..256 bytes without NUL. Default: host name, process number and a random part.
	Owner string
	// LeaseDuration is the length of the leases, 1 s..12 h: how long after the death of this
	// process its jobs stay where they are. Default: the job's, its queue's, 60 s.
	LeaseDuration time.Duration
	// Wait is how long one poll waits for a job, 1 s..60 s. Default: 20 s.
	Wait time.Duration
	// Grace is for how long handlers may go on after a shutdown began, before their context is
	// cancelled. Run then takes up to 8 s more, so that the default fits into the 30 s that
	// Kubernetes gives. Default: 20 s.
	Grace time.Duration
	// Log gets what is worth a line; each end of a lease is one at level debug. Payloads are never
	// logged. Default: slog.Default().
	Log *slog.Logger
	// Registry gets the metrics leasehold_worker_*; workers may share one. Default: none.
	Registry prometheus.Registerer
	// Tracer makes a span for each run of a handler, linked to the span that enqueued the job.
	// Default: none; the handler's context then carries the span context of the producer.
	Tracer trace.Tracer
}

// Validate reports all faults at once, each an *InvalidError.
func (c WorkerConfig) Validate() error {
	var faults []error
	check := func(ok bool, field, want string) {
		if !ok {
			faults = append(faults, &InvalidError{Field: field, Want: want})
		}
	}
	check(len(c.Queues) >= 1 && len(c.Queues) <= maxQueues, "Queues", "1..100 names")
	seen := map[string]bool{}
	for _, q := range c.Queues {
		check(!seen[q], "Queues", fmt.Sprintf("different names, %q is there twice", q))
		seen[q] = true
		check(validQueue(q), "Queues", fmt.Sprintf("names like [a-z0-9][a-z0-9._-]{0,127}, got %q", q))
	}
	check(c.Handler != nil, "Handler", "is required")
	check(c.Concurrency >= 0 && c.Concurrency <= maxConcurrency, "Concurrency", "1..10000, or 0 for 10")
	check(len(c.Owner) <= maxOwnerBytes && validText(c.Owner), "Owner", "1..256 bytes of UTF-8 without NUL, or empty for a name made of host and process")
	check(c.LeaseDuration == 0 || c.LeaseDuration >= minLease && c.LeaseDuration <= maxLease, "LeaseDuration", "1s..12h, or 0 for the job's")
	check(c.Wait == 0 || c.Wait >= time.Second && c.Wait <= maxWait, "Wait", "1s..60s, or 0 for 20s")
	check(c.Grace >= 0, "Grace", "at least 0, which is 20s")
	return errors.Join(faults...)
}

// validText tells whether gRPC and PostgreSQL can hold text.
func validText(text string) bool { return utf8.ValidString(text) && !strings.ContainsRune(text, 0) }

func validQueue(name string) bool {
	if name == "" || len(name) > 128 {
		return false
	}
	for i, c := range []byte(name) {
		letter := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		if !letter && (i == 0 || c != '.' && c != '_' && c != '-') {
			return false
		}
	}
	return true
}

// withDefaults fills in what was left out.
func (c WorkerConfig) withDefaults() WorkerConfig {
	c.Concurrency = cmp.Or(c.Concurrency, defaultConcurrency)
	c.Wait = cmp.Or(c.Wait, defaultWait)
	c.Grace = cmp.Or(c.Grace, defaultGrace)
	c.Log = cmp.Or(c.Log, slog.Default())
	if c.Owner == "" {
		c.Owner = defaultOwner()
	}
	return c
}

// defaultOwner differs between two processes that have the same number in two containers.
func defaultOwner() string {
	host, err := os.Hostname()
	if err != nil || host == "" || !validText(host) {
		host = "worker"
	}
	return fmt.Sprintf("%.200s/%d-%s", host, os.Getpid(), random(3))
}

// random is text of n random bytes.
func random(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // it never fails
	return hex.EncodeToString(b)
}
