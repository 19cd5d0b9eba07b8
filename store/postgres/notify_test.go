package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
	"github.com/leasehold/leasehold/store"
)

// sqlWaitEvent tells what a session waits for, empty where for nothing.
const sqlWaitEvent = `SELECT coalesce(max(wait_event_type || ':' || wait_event), '') FROM pg_stat_activity WHERE pid = $1`

// newHarnessWithoutStandby is a database whose commits wait for a standby that does not
// exist, except in sessions that ask for local commits, as those of the harness do.
func newHarnessWithoutStandby(t *testing.T) *harness {
	t.Helper()
	server := pgtest.Server(t)
	if err := migrate(t.Context(), server.URL("postgres")); err != nil {
		t.Fatal(err)
	}
	h := newHarnessOn(t, server.URL("postgres")+"&synchronous_commit=local")
	h.Exec(t, `CREATE TABLE public.work (n int)`)
	h.Exec(t, `ALTER SYSTEM SET synchronous_standby_names = 'absent'`)
	h.Exec(t, `SELECT pg_reload_conf()`)
	return h
}

// hangInCommit makes a transaction with a notification wait for the standby. The server
// learns of the standby's name in its own time, so the first ones may pass.
func (h *harness) hangInCommit(t *testing.T, s *stranger) <-chan error {
	t.Helper()
	s.exec(`SET synchronous_commit = on`)
	for range 1000 {
		s.exec(`BEGIN`)
		s.exec(`INSERT INTO public.work VALUES (1)`)
		s.exec(`SELECT pg_notify('anything', '')`)
		done, passed, hangs := s.start(`COMMIT`), false, false
		await(t, "a commit passes or waits for the standby", func() bool {
			select {
			case err := <-done:
				if passed = true; err != nil {
					t.Error(err)
				}
			default:
				hangs = one[string](t, h, sqlWaitEvent, s.pid) == "IPC:SyncRep"
			}
			return passed || hangs
		})
		if hangs {
			return done
		}
	}
	t.Fatal("no commit waits for the standby")
	return nil
}

// The experiment behind R41: a commit with a notification holds a lock of the whole database
// server until it is safe on the standbys, and every other commit with one waits for it.
func TestR41ACommitWithANotificationHoldsUpAllOthers(t *testing.T) {
	t.Parallel()
	h := newHarnessWithoutStandby(t)
	slow, notifying, silent := newStranger(t, h.URL), newStranger(t, h.URL), newStranger(t, h.URL)
	slowDone := h.hangInCommit(t, slow)
	for _, s := range []*stranger{notifying, silent} {
		s.exec(`BEGIN`)
		s.exec(`INSERT INTO public.work VALUES (1)`)
	}
	notifying.exec(`SELECT pg_notify('anything', '')`)
	notifyingDone := notifying.start(`COMMIT`)
	await(t, "the other commit waits for the lock", func() bool {
		return one[string](t, h, sqlWaitEvent, notifying.pid) == "Lock:object"
	})
	silent.exec(`COMMIT`)

	// Enqueue commits all the same, so it has no notification on any channel.
	ids := h.enqueue(t, store.NewJob{})
	if h.state(t, ids[0]) != store.Pending {
		t.Error("the job was not stored")
	}
	h.complete(t, h.lease(t, ids[0]))
	hint, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := h.store.Hint(hint, []string{"q"}); err == nil {
		t.Error("a hint passed: it is no notification, or the lock is not what it was")
	}
	for n, s := range []*stranger{slow, notifying} {
		if h.rows(t, sqlWaitEvent, s.pid)[0] == "" {
			t.Errorf("session %d went on meanwhile: this proves nothing", n)
		}
	}
	h.Exec(t, `ALTER SYSTEM RESET synchronous_standby_names`)
	h.Exec(t, `SELECT pg_reload_conf()`)
	for _, done := range []<-chan error{slowDone, notifyingDone} {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if err := h.store.Hint(t.Context(), []string{"q"}); err != nil {
		t.Errorf("a hint after all: %v", err)
	}
}

func TestR41HintsReachListenersAndEnqueuesDoNot(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	listening, heard := make(chan struct{}), make(chan []string, 16)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- h.store.Listen(ctx, func() { close(listening) }, func(queues []string) { heard <- queues })
	}()
	<-listening
	h.enqueue(t, blankJobs(3)...)
	if err := openStore(t, h.URL).Hint(t.Context(), []string{"q", "other"}); err != nil {
		t.Fatal(err)
	}
	// Notifications come in the order of their commits: had an enqueue sent one, it were the first.
	select {
	case queues := <-heard:
		if len(queues) != 2 || queues[0] != "q" || queues[1] != "other" {
			t.Errorf("heard %q", queues)
		}
	case <-time.After(patience):
		t.Error("the hint was not heard")
	}
	cancel()
	if err := <-done; err == nil {
		t.Error("Listen ended without a cause")
	}
}
