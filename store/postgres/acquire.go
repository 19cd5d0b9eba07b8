package postgres

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/store"
)

// Acquire takes leases, see store.LeaseStore. Items that ask for the same queues share a
// statement; so do those by job id.
func (s *Store) Acquire(ctx context.Context, items []store.Acquire) ([]store.Acquired, error) {
	results := make([]store.Acquired, len(items))
	groups := map[string][]int{}
	var order []string
	for i := range items {
		key := strings.Join(items[i].Queues, "\x00")
		if _, ok := groups[key]; !ok {
			order = append(order, key)
		}
		groups[key] = append(groups[key], i)
	}
	for _, key := range order {
		group := groups[key]
		err := s.inWaves(ctx, group, func(i int) any { return acquireIdentity(items[i], i) },
			func(ctx context.Context, wave []int) ([]int, error) { return s.acquireWave(ctx, items, results, wave) },
			func(i int, err error) {
				results[i].Err = cmp.Or[error](err, &store.BusyError{JobID: items[i].JobID, What: "the request_id or job"})
			})
		if err != nil && len(order) == 1 {
			return nil, err
		}
		if err != nil { // other groups may have leases by now
			failAll(group, err, func(i int, err error) { results[i].Err = err })
		}
	}
	return results, nil
}

// acquireIdentity keeps two claims of one job, or of one request id, out of one statement.
func acquireIdentity(a store.Acquire, i int) any {
	switch {
	case a.JobID != 0:
		return a.JobID
	case a.RequestID != nil:
		return *a.RequestID
	}
	return i
}

// acquireWave claims for items that ask for the same, and returns those that were locked.
func (s *Store) acquireWave(ctx context.Context, items []store.Acquire, results []store.Acquired, wave []int) ([]int, error) {
	rows, held, err := s.claim(ctx, items, wave)
	if err != nil {
		return nil, err
	}
	for _, i := range wave {
		results[i] = store.Acquired{}
	}
	inSlotOrder(rows)
	for i := range rows {
		result := &results[wave[rows[i].Caller-1]]
		lease := rows[i].lease()
		result.Leases = append(result.Leases, lease)
		// Both are the database's clock, when the lease was granted.
		s.seen.Leased(lease.Job.Queue, max(0, lease.Until.Add(-lease.Remaining).Sub(lease.Job.RunAt)))
	}
	var again, empty, asked []int
	for n, i := range wave {
		switch {
		case len(results[i].Leases) > 0:
		case items[i].RequestID == nil:
			empty = append(empty, i)
		default:
			asked = append(asked, n)
		}
	}
	// From here on leases are committed: a failure is that of items without leases only.
	replayed, err := s.replay(ctx, items, results, wave, asked)
	for _, n := range asked {
		switch i := wave[n]; {
		case replayed[i]:
		case err != nil:
			results[i].Err = err
		case !held.has(n + 1):
			again = append(again, i) // the same request is in flight elsewhere
		default:
			empty = append(empty, i)
		}
	}
	locked, err := s.explainEmpty(ctx, items, results, empty)
	if err != nil {
		failAll(empty, err, func(i int, err error) { results[i].Err = err })
	}
	return append(again, locked...), nil
}

// requestDigest tells whether a request id is used with the same arguments again.
func requestDigest(a store.Acquire) []byte {
	h := sha256.New()
	writeText := func(text string) {
		var size [8]byte
		binary.BigEndian.PutUint64(size[:], uint64(len(text)))
		_, _ = h.Write(size[:])
		_, _ = h.Write([]byte(text))
	}
	for _, q := range a.Queues {
		writeText(q)
	}
	writeText(a.Owner)
	length := int64(-1)
	if a.LeaseDuration != nil {
		length = int64(*a.LeaseDuration)
	}
	for _, v := range []int64{int64(len(a.Queues)), int64(a.JobID), int64(a.MaxJobs), length} {
		writeText(itoa64(v))
	}
	return h.Sum(nil)
}

// replay answers the acquires at the positions given of a wave by what their request ids
// were answered before, and tells which were.
func (s *Store) replay(ctx context.Context, items []store.Acquire, results []store.Acquired, wave, asked []int) (map[int]bool, error) {
	if len(asked) == 0 {
		return nil, nil
	}
	byID := make(map[string]int, len(asked))
	ids := make([]string, 0, len(asked))
	for _, n := range asked {
		id := *items[wave[n]].RequestID
		byID[id] = wave[n]
		ids = append(ids, id)
	}
	before, err := query(ctx, s, unit{lane: s.work, sql: sqlReplay, args: []any{ids}, idempotent: true},
		pgx.RowToStructByName[replayRow])
	if err != nil {
		return nil, err
	}
	replayed := make(map[int]bool, len(before))
	for _, r := range before {
		i := byID[r.RequestID]
		replayed[i] = true
		if !bytes.Equal(r.Digest, requestDigest(items[i])) {
			results[i].Err = &store.RequestReusedError{RequestID: r.RequestID}
			continue
		}
		if err := s.replayLeases(ctx, r, &results[i]); err != nil {
			results[i].Err = err
		}
	}
	return replayed, nil
}

type replayRow struct {
	RequestID string
	Digest    []byte
	JobIDs    []int64 `db:"job_ids"`
	LeaseNos  []int64
}

func (s *Store) replayLeases(ctx context.Context, r replayRow, result *store.Acquired) error {
	rows, err := query(ctx, s, unit{lane: s.work, sql: sqlReplayLeases, args: []any{r.JobIDs, r.LeaseNos}, idempotent: true},
		scanLease)
	inSlotOrder(rows)
	for i := range rows {
		result.Leases = append(result.Leases, rows[i].lease())
	}
	if len(rows) == 0 {
		result.Empty = store.NoReadyJobs
	}
	return err
}

// explainEmpty says why items have no leases; it returns those whose job was only locked.
func (s *Store) explainEmpty(ctx context.Context, items []store.Acquire, results []store.Acquired, empty []int) ([]int, error) {
	if len(empty) == 0 {
		return nil, nil
	}
	if items[empty[0]].JobID != 0 {
		return s.explainJobs(ctx, items, results, empty)
	}
	type queueRow struct {
		Name          string
		Found, Paused bool
	}
	rows, err := query(ctx, s, unit{lane: s.work, sql: sqlExplainQueues, args: []any{items[empty[0]].Queues}, idempotent: true},
		pgx.RowToStructByName[queueRow])
	if err != nil {
		return nil, err
	}
	reason, missing := store.QueuePaused, error(nil)
	for _, q := range rows {
		if !q.Found && missing == nil {
			missing = &store.QueueNotFoundError{Queue: q.Name}
		}
		if !q.Paused {
			reason = store.NoReadyJobs
		}
	}
	for _, i := range empty {
		results[i].Empty, results[i].Err = reason, missing
	}
	return nil, nil
}

func (s *Store) explainJobs(ctx context.Context, items []store.Acquire, results []store.Acquired, empty []int) ([]int, error) {
	type jobRow struct {
		Ord                int
		State              *int16
		Paused             bool
		Ahead, Live, Spent *bool
	}
	ids := make([]int64, len(empty))
	for n, i := range empty {
		ids[n] = int64(items[i].JobID)
	}
	rows, err := query(ctx, s, unit{lane: s.work, sql: sqlExplainJobs, args: []any{ids}, idempotent: true},
		pgx.RowToStructByName[jobRow])
	if err != nil {
		return nil, err
	}
	var locked []int
	for _, r := range rows {
		i := empty[r.Ord-1]
		result := &results[i]
		switch {
		case r.State == nil:
			result.Err = &store.JobNotFoundError{JobID: items[i].JobID}
		case store.State(*r.State).Terminal():
			result.Empty = store.JobFinished
		case store.State(*r.State) == store.Stuck, *r.Spent: // spent jobs are set STUCK within the minute
			result.Empty = store.JobStuck
		case store.State(*r.State) == store.Processing:
			result.Empty = store.JobLeased
		case r.Paused:
			result.Empty = store.QueuePaused
		case *r.Ahead:
			result.Empty = store.JobNotDue
		default:
			locked = append(locked, i)
		}
	}
	return locked, nil
}
