package postgres_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/leasehold/leasehold/store"
)

// hints listens until the end of the test.
func (h *harness) hints(t *testing.T) <-chan []string {
	t.Helper()
	listening, heard := make(chan struct{}), make(chan []string, 1024)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = h.store.Listen(ctx, func() { close(listening) }, func(queues []string) { heard <- queues }) // the end of the test ends it
	}()
	t.Cleanup(func() { cancel(); <-done })
	select {
	case <-listening:
	case <-time.After(patience):
		t.Fatal("nobody listens")
	}
	return heard
}

// next is what is heard next.
func next(t *testing.T, heard <-chan []string) []string {
	t.Helper()
	select {
	case queues := <-heard:
		return queues
	case <-time.After(patience):
		t.Fatal("nothing is heard")
		return nil
	}
}

// Notifications come in the order of their commits: what is heard before the hint at the end
// is all there was.
func TestR41SQLNotifiesOnlyWhereSomebodyWaits(t *testing.T) {
	t.Parallel()
	h := newSQLRoles(t)
	if err := h.store.EnsureQueues(t.Context(), []string{"other", "paused"}); err != nil {
		t.Fatal(err)
	}
	heard, app := h.hints(t), h.producer(t)
	app.exec(`SELECT leasehold.enqueue('q')`) // nobody waits
	for name, until := range map[string]string{"a replica died": `now() - interval '1 second'`, "the clock was set back": `now() + interval '1 day'`} {
		h.Exec(t, `INSERT INTO leasehold.queue_waits SELECT id, `+until+` FROM leasehold.queues WHERE name = 'q'
			ON CONFLICT (queue_id) DO UPDATE SET waited_until = EXCLUDED.waited_until`)
		before := one[time.Time](t, h, `SELECT waited_until FROM leasehold.queue_waits`)
		app.exec(`SELECT leasehold.enqueue('q')`)
		h.poll(t, "q")
		if after := one[time.Time](t, h, `SELECT waited_until FROM leasehold.queue_waits`); after.Equal(before) {
			t.Errorf("%s: a poll leaves the note as it is", name)
		}
	}
	h.Exec(t, `UPDATE leasehold.queues SET paused_at = now() WHERE name = 'paused'`)
	h.poll(t, "q", "paused")
	app.exec(`BEGIN`)
	app.exec(`SELECT leasehold.enqueue('q')`)
	app.exec(`ROLLBACK`)
	for _, silent := range []string{`'other'`, `'paused'`, `'q', delay => '1 hour'`} {
		app.exec(`SELECT leasehold.enqueue(` + silent + `)`)
	}
	hint := func(queue string) {
		if err := h.store.Hint(t.Context(), []string{queue}); err != nil {
			t.Fatal(err)
		}
	}
	hint("silent until here")
	if got := next(t, heard); !slices.Equal(got, []string{"silent", "until", "here"}) {
		t.Errorf("before anybody had reason to, somebody notified of %q", got)
	}
	// On a machine that sleeps for seconds the note may be over before the enqueue comes.
	await(t, "an enqueue notifies of a queue that is waited for", func() bool {
		h.poll(t, "q")
		app.exec(`SELECT leasehold.enqueue_many('q', ARRAY['{}', '{}']::json[])`)
		hint("end")
		got := next(t, heard)
		if slices.Equal(got, []string{"q"}) {
			return slices.Equal(next(t, heard), []string{"end"})
		}
		return false
	})
}

// poll is what a replica with parked polls does each second.
func (h *harness) poll(t testing.TB, queues ...string) []store.QueueReadiness {
	t.Helper()
	out, err := h.store.ReadyQueues(t.Context(), queues)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// The note that somebody waits is a courtesy: what stands in its way does not stop the poll.
func TestR41ALockedNoteStopsNoPoll(t *testing.T) {
	t.Parallel()
	h := newSQLRoles(t)
	h.enqueue(t, blankJobs(1)...)
	h.poll(t, "q")
	holder := newStranger(t, h.URL)
	for _, lock := range []string{`SELECT FROM leasehold.queue_waits FOR UPDATE`, `LOCK TABLE leasehold.queue_waits IN ACCESS EXCLUSIVE MODE`} {
		h.Exec(t, `UPDATE leasehold.queue_waits SET waited_until = now() - interval '1 minute'`)
		holder.exec(`BEGIN`)
		holder.exec(lock)
		if out := h.poll(t, "q"); len(out) != 1 || !out[0].Ready {
			t.Errorf("%s: the poll answers %+v", lock, out)
		}
		holder.exec(`ROLLBACK`)
	}
}
