package postgres

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/store"
)

// enqueueRow is what became of one item.
type enqueueRow struct {
	Ord     int
	Outcome string
	JobID   *int64
}

// Enqueue stores jobs, see store.JobStore.
func (s *Store) Enqueue(ctx context.Context, items []store.NewJob) ([]store.Enqueued, error) {
	results := make([]store.Enqueued, len(items))
	todo := checkNewJobs(items, results)
	err := s.inWaves(ctx, todo, func(i int) any { return enqueueIdentity(items[i], i) }, func(ctx context.Context, wave []int) ([]int, error) {
		return s.enqueueWave(ctx, items, results, wave)
	}, func(i int, err error) {
		results[i].Err = cmp.Or[error](err, &store.BusyError{What: "the idempotency key"})
	})
	return results, err
}

// enqueueIdentity keeps two items of one key out of the same statement.
func enqueueIdentity(job store.NewJob, i int) any {
	if job.IdempotencyKey == nil {
		return i
	}
	return [2]string{job.Queue, *job.IdempotencyKey}
}

// enqueueWave stores items with distinct keys and returns those that were locked. Items
// with and without a key go apart: only the former may be repeated after an unknown outcome.
func (s *Store) enqueueWave(ctx context.Context, items []store.NewJob, results []store.Enqueued, wave []int) ([]int, error) {
	var keyed, plain []int
	for _, i := range wave {
		if items[i].IdempotencyKey != nil {
			keyed = append(keyed, i)
		} else {
			plain = append(plain, i)
		}
	}
	again, err := s.enqueuePlain(ctx, items, results, plain)
	if err != nil && len(keyed) == 0 {
		return nil, err
	}
	if err != nil {
		failPart(results, plain, err)
	}
	locked, err := s.enqueueKeyed(ctx, items, results, keyed)
	if err != nil && len(plain) == 0 {
		return nil, err
	}
	if err != nil {
		failPart(results, keyed, err)
	}
	return append(again, locked...), nil
}

func (s *Store) enqueuePlain(ctx context.Context, items []store.NewJob, results []store.Enqueued, part []int) (again []int, err error) {
	if len(part) == 0 {
		return nil, nil
	}
	return s.enqueueStatement(ctx, items, results, part, unit{lane: s.work})
}

const (
	// keyPatience bounds the wait for one key that somebody has inserted or locked with SQL of
	// their own, past the locks of keys: PostgreSQL knows no way to skip it.
	keyPatience = 50 * time.Millisecond
	// splitPatience bounds the search for such keys in one statement.
	splitPatience = 500 * time.Millisecond
)

// enqueueKeyed stores items with keys. Where a statement meets a key that it would have to
// wait for, it is halved until that one is alone, so that the others are stored without it.
// Where everything is locked, as under a lock of the table, that is the call's own error.
func (s *Store) enqueueKeyed(ctx context.Context, items []store.NewJob, results []store.Enqueued, part []int) (again []int, err error) {
	end := time.Now().Add(splitPatience)
	decided := 0
	for parts := [][]int{part}; len(parts) > 0; {
		part, parts = parts[0], parts[1:]
		if len(part) == 0 {
			continue
		}
		left, failed := s.enqueueStatement(ctx, items, results, part, unit{lane: s.work, idempotent: true, lock: keyPatience})
		_, locked := errors.AsType[*store.BusyError](failed)
		switch {
		case failed == nil:
			again, decided = append(again, left...), decided+len(part)
		case locked && len(part) == 1, locked && time.Now().After(end):
			again, err = append(again, part...), failed
		case locked:
			parts, err = append(parts, part[:len(part)/2], part[len(part)/2:]), failed
		case decided == 0 && len(parts) == 0:
			return nil, failed
		default:
			failPart(results, part, failed)
		}
	}
	if decided == 0 && len(again) > 1 {
		return nil, err
	}
	return again, nil
}

// enqueueStatement runs one statement and returns the items that were locked.
func (s *Store) enqueueStatement(ctx context.Context, items []store.NewJob, results []store.Enqueued, part []int, u unit) (again []int, err error) {
	jobs := make([]store.NewJob, len(part))
	for n, i := range part {
		jobs[n] = items[i]
	}
	u.sql, u.args = sqlEnqueue, enqueueArgs(jobs, nil)
	rows, err := query(ctx, s, u, pgx.RowToStructByName[enqueueRow])
	if err != nil {
		return nil, err
	}
	for _, row := range rows {
		i := part[row.Ord-1]
		if !settleEnqueue(items[i], row, &results[i]) {
			again = append(again, i)
		}
	}
	return again, nil
}

// failPart gives every item of a failed statement its error: the other part may have
// been stored, and its answer must not be lost with it.
func failPart(results []store.Enqueued, part []int, err error) {
	for _, i := range part {
		results[i].Err = err
	}
}

// settleEnqueue notes what became of an item; false where it has to be tried again.
func settleEnqueue(job store.NewJob, row enqueueRow, result *store.Enqueued) bool {
	*result = store.Enqueued{}
	switch row.Outcome {
	case "created":
		result.JobID, result.Created = store.JobID(*row.JobID), true
	case "same":
		result.JobID = store.JobID(*row.JobID)
	case "reused":
		result.Err = &store.KeyReusedError{Queue: job.Queue, JobID: store.JobID(*row.JobID)}
	case "queue":
		result.Err = &store.QueueNotFoundError{Queue: job.Queue}
	case "ahead":
		result.Err = &store.InvalidError{Field: "run_at", Description: "must be at most 5 years ahead"}
	default: // busy, or lost against a key that was committed meanwhile
		return false
	}
	return true
}

// checkNewJobs refuses what no statement could store, and returns the others.
func checkNewJobs(items []store.NewJob, results []store.Enqueued) []int {
	todo := make([]int, 0, len(items))
	for i := range items {
		if err := checkNewJob(&items[i]); err != nil {
			results[i].Err = err
			continue
		}
		todo = append(todo, i)
	}
	return todo
}

func checkNewJob(job *store.NewJob) error {
	if len(job.Payload.Data) > store.MaxPayloadBytes {
		return &store.InvalidError{Field: "payload", TooLarge: true,
			Description: fmt.Sprintf("must be at most %d bytes, got %d", store.MaxPayloadBytes, len(job.Payload.Data))}
	}
	if job.Delay != nil && (*job.Delay < 0 || *job.Delay > store.MaxAhead) {
		return &store.InvalidError{Field: "delay", Description: "must be 0..5 years (1827 days)"}
	}
	size := 0
	for k, v := range job.Headers {
		size += len(k) + len(v)
	}
	if size > store.MaxHeadersBytes {
		return &store.InvalidError{Field: "headers", TooLarge: true,
			Description: fmt.Sprintf("must be at most %d bytes in all, got %d", store.MaxHeadersBytes, size)}
	}
	return nil
}

// enqueueColumns are the arrays of sqlEnqueue. Policy columns stay empty until one item
// sets them.
type enqueueColumns struct {
	queues       []string
	payloads     [][]byte
	isJSON       []bool
	contentTypes []string
	headers      []*string
	subjects     []*string
	priorities   []*int32
	runAt        []*time.Time
	delays       []*time.Duration
	keys         []*string
	digests      [][]byte
}

func enqueueArgs(jobs []store.NewJob, parent *store.JobID) []any {
	n := len(jobs)
	c := enqueueColumns{
		queues: make([]string, n), payloads: make([][]byte, n), isJSON: make([]bool, n), contentTypes: make([]string, n),
		headers: make([]*string, n), subjects: make([]*string, n), priorities: make([]*int32, n), runAt: make([]*time.Time, n),
		delays: make([]*time.Duration, n), keys: make([]*string, n), digests: make([][]byte, n),
	}
	distinct := map[string]bool{}
	for i := range jobs {
		c.set(i, &jobs[i])
		distinct[jobs[i].Queue] = true
	}
	names := make([]string, 0, len(distinct))
	for name := range distinct {
		names = append(names, name)
	}
	parents := []int64{}
	if parent != nil {
		for range jobs {
			parents = append(parents, int64(*parent))
		}
	}
	args := []any{names, c.queues, c.payloads, c.isJSON, c.contentTypes, c.headers, c.subjects, c.priorities,
		c.runAt, c.delays, c.keys, c.digests, parents}
	return append(args, policyArgs(jobs)...)
}

func (c *enqueueColumns) set(i int, job *store.NewJob) {
	c.queues[i] = job.Queue
	c.payloads[i] = notNil(job.Payload.Data)
	c.isJSON[i] = job.Payload.JSON
	c.contentTypes[i] = job.Payload.ContentType
	if len(job.Headers) > 0 {
		text, err := json.Marshal(job.Headers)
		if err == nil { // a map of strings can always be marshalled
			c.headers[i] = ptr(string(text))
		}
	}
	c.subjects[i], c.priorities[i] = job.Subject, job.Priority
	c.runAt[i], c.delays[i] = job.RunAt, job.Delay
	if c.keys[i] = job.IdempotencyKey; job.IdempotencyKey != nil {
		c.digests[i] = payloadDigest(job.Payload)
	}
}

// policyArgs are the last eleven arrays of sqlEnqueue, empty where no job sets any.
func policyArgs(jobs []store.NewJob) []any {
	set := false
	for i := range jobs {
		set = set || jobs[i].Policy != (store.Policy{})
	}
	if !set {
		jobs = nil
	}
	return []any{
		column(jobs, func(p *store.Policy) *int32 { return p.MaxAttempts }),
		column(jobs, func(p *store.Policy) *int32 { return p.MaxExpirations }),
		column(jobs, func(p *store.Policy) *time.Duration { return p.BackoffInitial }),
		column(jobs, func(p *store.Policy) *float64 { return p.BackoffFactor }),
		column(jobs, func(p *store.Policy) *time.Duration { return p.BackoffCap }),
		column(jobs, func(p *store.Policy) *float64 { return p.BackoffJitter }),
		column(jobs, func(p *store.Policy) *time.Duration { return p.LeaseDuration }),
		column(jobs, func(p *store.Policy) *time.Duration { return p.MaxRuntime }),
		column(jobs, func(p *store.Policy) *time.Duration { return p.StallTimeout }),
		column(jobs, func(p *store.Policy) *time.Duration { return p.CancelGrace }),
		column(jobs, func(p *store.Policy) *time.Duration { return p.IdempotencyRetention }),
	}
}

func column[T any](jobs []store.NewJob, get func(*store.Policy) *T) []*T {
	values := make([]*T, len(jobs))
	for i := range jobs {
		values[i] = get(&jobs[i].Policy)
	}
	return values
}

// payloadDigest tells equal payloads; the lengths keep the two parts apart.
func payloadDigest(p store.Payload) []byte {
	h := sha256.New()
	writePayload(h, p)
	return h.Sum(nil)
}

type byteWriter interface{ Write([]byte) (int, error) }

func writePayload(h byteWriter, p store.Payload) {
	var head [9]byte
	binary.BigEndian.PutUint64(head[:], uint64(len(p.Data)))
	if p.JSON {
		head[8] = 1
	}
	// A hash never fails to take bytes.
	_, _ = h.Write(head[:])
	_, _ = h.Write(p.Data)
	_, _ = h.Write([]byte(p.ContentType))
}

func notNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

func ptr[T any](v T) *T { return &v }
