package postgres_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/leasehold/leasehold/store"
)

// sqlKillOne ends one session of that name, whatever it is doing.
const sqlKillOne = `
SELECT coalesce(bool_or(pg_terminate_backend(v.pid)), false)
FROM (SELECT a.pid FROM pg_stat_activity a WHERE a.application_name = $1 AND a.datname = current_database() ORDER BY random() LIMIT 1) v`

// killSessions ends sessions of that name at random moments until stop is closed; done then
// gives how many it were.
func (h *harness) killSessions(t *testing.T, name string, stop <-chan struct{}) (hits <-chan struct{}, done <-chan int) {
	t.Helper()
	killed, each := make(chan int, 1), make(chan struct{}, 1000)
	killer := newStranger(t, h.URL)
	go func() {
		n := 0
		defer func() { killed <- n }()
		for {
			pause := time.NewTimer(rand.N(60 * time.Millisecond))
			select {
			case <-stop:
				pause.Stop()
				return
			case <-pause.C:
			}
			var hit bool
			if err := killer.conn.QueryRow(context.Background(), sqlKillOne, name).Scan(&hit); err == nil && hit {
				n++
				select {
				case each <- struct{}{}:
				default: // nobody counts so many
				}
			}
		}
	}()
	return each, killed
}

const (
	// enoughKills prove something.
	enoughKills = 5
	// killPatience is how long a number waits for the next kill: where all sessions are gone, only
	// work opens new ones.
	killPatience = 200 * time.Millisecond
)

// underKills runs work for each of n numbers on eight goroutines, on a Store whose sessions
// are being killed.
func (h *harness) underKills(t *testing.T, n int, work func(s store.Store, i int)) {
	t.Helper()
	s := openAs(t, h.URL, "victim")
	stop := make(chan struct{})
	hits, killed := h.killSessions(t, "victim", stop)
	numbers := make(chan int)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for i := range numbers {
				work(s, i)
			}
		})
	}
	// The work must not be over before the kills are: it goes on as they come.
	for i, seen := 0, 0; i < n; i++ {
		for seen < i*2*enoughKills/n {
			select {
			case <-hits:
			case <-time.After(killPatience):
			}
			seen++
		}
		numbers <- i
	}
	close(numbers)
	all.Wait()
	close(stop)
	if kills := <-killed; kills < enoughKills {
		t.Errorf("only %d sessions were killed: this proves nothing", kills)
	}
}

// again tells errors after which a caller repeats an idempotent call.
func again(err error) bool {
	return is[*store.UnavailableError](err) || is[*store.BusyError](err)
}

func TestR34KeyedEnqueuesUnderKillsStoreOneJobEach(t *testing.T) {
	t.Parallel()
	const n = 300
	h := newHarness(t)
	h.enqueue(t) // makes the queue
	answered := make([]store.JobID, n)
	h.underKills(t, n, func(s store.Store, i int) {
		key := fmt.Sprintf("key %d", i)
		for range 1000 {
			out, err := s.Enqueue(context.Background(), []store.NewJob{{Queue: "q", IdempotencyKey: &key}})
			err = firstError(err, func() error { return out[0].Err })
			if err == nil {
				answered[i] = out[0].JobID
				return
			}
			if !again(err) {
				t.Errorf("%s: %v", key, err)
				return
			}
		}
		t.Errorf("%s was never answered", key)
	})
	if jobs := one[int](t, h, `SELECT count(*)::int FROM leasehold.jobs`); jobs != n {
		t.Errorf("%d keys have %d jobs", n, jobs)
	}
	for i, id := range answered {
		owner := one[int64](t, h, `SELECT j.id FROM leasehold.idempotency_keys k JOIN leasehold.jobs j ON j.id = k.job_id WHERE k.key = $1`, fmt.Sprintf("key %d", i))
		if owner != int64(id) {
			t.Errorf("key %d belongs to job %d, the answer said %d", i, owner, id)
		}
	}
}

func TestR34UnkeyedEnqueuesUnderKillsAreNeverDoubledOrInvented(t *testing.T) {
	t.Parallel()
	const n = 400
	h := newHarness(t)
	h.enqueue(t)
	answers := make([]error, n)
	h.underKills(t, n, func(s store.Store, i int) {
		subject := fmt.Sprint(i)
		out, err := s.Enqueue(context.Background(), []store.NewJob{{Queue: "q", Subject: &subject}})
		answers[i] = firstError(err, func() error { return out[0].Err })
	})
	stored := map[string]bool{}
	for _, subject := range h.rows(t, `SELECT subject FROM leasehold.jobs`) {
		if stored[subject] {
			t.Errorf("%s was stored twice", subject)
		}
		stored[subject] = true
	}
	counts := map[string]int{}
	for i, err := range answers {
		has := stored[fmt.Sprint(i)]
		switch {
		case err == nil && !has:
			t.Errorf("%d was answered OK and is not stored", i)
		case again(err) && has:
			t.Errorf("%d is stored though the answer says that nothing was done: %v", i, err)
		case err != nil && !again(err) && !is[*store.OutcomeUnknownError](err):
			t.Errorf("%d: %T %v", i, err, err)
		}
		counts[fmt.Sprintf("%T", err)]++
	}
	t.Logf("%d jobs for the answers %v", len(stored), counts)
	if counts["<nil>"] == 0 || counts["*store.OutcomeUnknownError"] == 0 {
		t.Errorf("the answers are one-sided: %v", counts)
	}
}

func TestR34EndsUnderKillsAreAppliedOnce(t *testing.T) {
	t.Parallel()
	const n = 600 // fewer are done before five sessions are killed, where nothing else runs
	h := newHarness(t)
	refs := h.leases(t, n)
	fresh := make([]int, n)
	h.underKills(t, n, func(s store.Store, i int) {
		for range 1000 {
			out, err := s.Complete(context.Background(), completesOf(refs[i]))
			err = firstError(err, func() error { return out[0].Err })
			if err == nil {
				if !out[0].AlreadyApplied {
					fresh[i]++
				}
				return
			}
			if !again(err) {
				t.Errorf("lease %v: %v", refs[i], err)
				return
			}
		}
	})
	if done := one[int](t, h, `SELECT count(*)::int FROM leasehold.finished_jobs WHERE state = 4 AND end_kind = 1`); done != n {
		t.Errorf("%d of %d jobs are completed", done, n)
	}
	applied := 0
	for _, times := range fresh {
		applied += times
	}
	t.Logf("%d of %d were answered as applied by that call", applied, n)
}
