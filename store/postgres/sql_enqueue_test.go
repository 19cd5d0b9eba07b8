package postgres_test

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
	"github.com/leasehold/leasehold/store"
)

// newSQLRoles is a database whose functions are called by sessions of the roles.
func newSQLRoles(t testing.TB) *harness {
	t.Helper()
	h := newHarnessOn(t, pgtest.Database(t, migrateWithLogins))
	if err := h.store.EnsureQueues(t.Context(), []string{"q"}); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *harness) producer(t testing.TB) *stranger {
	return newStranger(t, as(t, h.URL, producerLogin))
}
func (h *harness) worker(t testing.TB) *stranger { return newStranger(t, as(t, h.URL, workerLogin)) }

// job calls a function that answers one job id.
func (s *stranger) job(sql string, args ...any) store.JobID {
	s.t.Helper()
	var id store.JobID
	if err := s.conn.QueryRow(s.t.Context(), sql, args...).Scan(&id); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
	return id
}

// refused runs what must be refused, and answers the reason and the field.
func (s *stranger) refused(sql string, args ...any) string {
	s.t.Helper()
	_, err := s.conn.Exec(s.t.Context(), sql, args...)
	return reasonOf(err)
}

// reasonOf is the reason of an error of ours with its field, else the SQLSTATE, else the text.
func reasonOf(err error) string {
	pgErr, ok := err.(*pgconn.PgError) //nolint:errorlint // as pgx gives it
	switch {
	case !ok:
		return fmt.Sprint(err)
	case !strings.HasPrefix(pgErr.Code, "LH"):
		return pgErr.Code
	default:
		return strings.TrimSpace(pgErr.Detail + " " + pgErr.ColumnName)
	}
}

func TestR46AnEnqueueIsSeenAfterTheCommitAndNeverAfterARollback(t *testing.T) {
	t.Parallel()
	h := newSQLRoles(t)
	h.Exec(t, `CREATE TABLE public.orders (id int PRIMARY KEY)`)
	h.Exec(t, `GRANT INSERT ON public.orders TO `+producerLogin)
	app := h.producer(t)
	for _, end := range []string{`ROLLBACK`, `COMMIT`} {
		app.exec(`BEGIN`)
		app.exec(`INSERT INTO orders VALUES (1)`)
		app.job(`SELECT job_id FROM leasehold.enqueue('q', '{"order":1}')`)
		if got := h.acquireAny(t, 5); len(got) != 0 {
			t.Errorf("before the %s somebody got %v", end, got)
		}
		app.exec(end)
	}
	if got := h.acquireAny(t, 5); len(got) != 1 {
		t.Errorf("after the commit %d jobs were leased", len(got))
	}
	if n := one[int](t, h, `SELECT count(*)::int FROM orders`); n != 1 {
		t.Errorf("%d orders", n)
	}
}

// acquireAny leases from the queue "q".
func (h *harness) acquireAny(t testing.TB, n int) []store.Lease {
	t.Helper()
	out, err := h.store.Acquire(t.Context(), []store.Acquire{{Queues: []string{"q"}, Owner: "w", MaxJobs: n}})
	if err != nil || out[0].Err != nil {
		t.Fatal(err, out[0].Err)
	}
	return out[0].Leases
}

// Every item of enqueue_many may say what enqueue can be told, and makes the same job.
func TestR46BulkHasEveryOptionOfEnqueue(t *testing.T) {
	t.Parallel()
	h := newSQLRoles(t)
	app := h.producer(t)
	single := app.job(`
SELECT job_id FROM leasehold.enqueue('q', payload => '{"a": [1,  2]}', content_type => 'application/json', headers => '{"trace":"1"}',
    subject => 's/1', priority => 2, delay => '1 day 1 hour', max_attempts => 7, max_expirations => 3, backoff_initial => '2 seconds',
    backoff_factor => 1.5, backoff_cap => '1 month', backoff_jitter => 0.1, lease_duration => '90 seconds', max_runtime => '1 hour',
    stall_timeout => '10 minutes', cancel_grace => '1 minute', idempotency_retention => '1 week', idempotency_key => 'k1')`)
	bulk := app.job(`
SELECT job_id FROM leasehold.enqueue_many('q', ARRAY['{"payload": {"a": [1,  2]}, "content_type": "application/json", "headers": {"trace":"1"},
    "subject": "s/1", "priority": 2, "delay": "1 day 1 hour", "max_attempts": 7, "max_expirations": 3, "backoff_initial": "2 seconds",
    "backoff_factor": 1.5, "backoff_cap": "1 month", "backoff_jitter": 0.1, "lease_duration": "90 seconds", "max_runtime": "1 hour",
    "stall_timeout": "10 minutes", "cancel_grace": "1 minute", "idempotency_retention": "1 week", "idempotency_key": "k2"}']::json[])`)
	day := 24 * time.Hour
	job := store.NewJob{
		Queue: "q", Payload: store.Payload{Data: []byte(`{"a": [1,  2]}`), JSON: true, ContentType: "application/json"},
		Headers: map[string]string{"trace": "1"}, Subject: new("s/1"), Priority: new(int32(2)), Delay: new(25 * time.Hour), IdempotencyKey: new("k3"),
		Policy: store.Policy{
			MaxAttempts: new(int32(7)), MaxExpirations: new(int32(3)), BackoffInitial: new(2 * time.Second), BackoffFactor: new(1.5), BackoffCap: new(30 * day),
			BackoffJitter: new(0.1), LeaseDuration: new(90 * time.Second), MaxRuntime: new(time.Hour), StallTimeout: new(10 * time.Minute),
			CancelGrace: new(time.Minute), IdempotencyRetention: new(7 * day),
		},
	}
	byAPI := h.enqueue(t, job)[0]
	want := h.comparable(t, byAPI)
	for how, id := range map[string]store.JobID{"enqueue": single, "enqueue_many": bulk} {
		got := h.comparable(t, id)
		if wait := got.RunAt.Sub(got.CreatedAt); wait != 25*time.Hour {
			t.Errorf("%s: it is due after %v", how, wait)
		}
		got.RunAt, got.CreatedAt, got.ID, got.IdempotencyKey = want.RunAt, want.CreatedAt, want.ID, want.IdempotencyKey
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s made\n%+v\nthe service\n%+v", how, got, want)
		}
	}
}

// comparable reads all of a job.
func (h *harness) comparable(t *testing.T, id store.JobID) store.Job {
	t.Helper()
	job, err := h.store.GetJob(t.Context(), id, true)
	if err != nil {
		t.Fatal(err)
	}
	return *job
}

func TestR46BulkIsAllOrNone(t *testing.T) {
	t.Parallel()
	h := newSQLRoles(t)
	app := h.producer(t)
	const call = `SELECT leasehold.enqueue_many('q', $1::json[])`
	many := slices.Repeat([]string{`{}`}, 1001)
	for name, c := range map[string]struct {
		items []string
		want  string
	}{
		"no object":           {[]string{`{}`, `[]`}, "INVALID_REQUEST items"},
		"an unknown field":    {[]string{`{"prority": 1}`}, "INVALID_REQUEST items"},
		"not a field of it":   {[]string{`{"content": "x"}`}, "INVALID_REQUEST items"},
		"a bad number":        {[]string{`{}`, `{"priority": "high"}`}, "INVALID_REQUEST"},
		"a bad time":          {[]string{`{"run_at": "tomorrow-ish"}`}, "INVALID_REQUEST"},
		"a bad base64":        {[]string{`{"data": "%%"}`}, "INVALID_REQUEST"},
		"beyond a bound":      {[]string{`{}`, `{"priority": 10}`}, "INVALID_REQUEST priority"},
		"payload and data":    {[]string{`{"payload": 1, "data": "AAAA"}`}, "INVALID_REQUEST payload"},
		"another queue":       {[]string{`{}`, `{"queue": "nobodys"}`}, "QUEUE_NOT_FOUND"},
		"one key, two jobs":   {[]string{`{"idempotency_key": "k"}`, `{"idempotency_key": "k", "payload": 1}`}, "IDEMPOTENCY_KEY_REUSED idempotency_key"},
		"more than a batch":   {many, "INVALID_REQUEST items"},
		"a payload too large": {[]string{`{"payload": "` + strings.Repeat("x", 1<<20) + `"}`}, "TOO_LARGE payload"},
	} {
		if got := app.refused(call, c.items); got != c.want {
			t.Errorf("%s: refused with %q, want %q", name, got, c.want)
		}
	}
	if n := one[int](t, h, `SELECT count(*)::int FROM leasehold.jobs`); n != 0 {
		t.Errorf("%d jobs were stored", n)
	}
	for name, sql := range map[string]string{"none": `SELECT count(*)::int FROM leasehold.enqueue_many('q', NULL)`, "no item": `SELECT count(*)::int FROM leasehold.enqueue_many('q', '{}')`} {
		if n := one[int](t, h, sql); n != 0 {
			t.Errorf("%s: %d rows", name, n)
		}
	}
	rows := h.rows(t, `SELECT item || ' ' || created FROM leasehold.enqueue_many('q', ARRAY['{"idempotency_key":"b"}','{"data":"AP8="}','{"idempotency_key":"a"}','{"idempotency_key":"b"}']::json[])`)
	if want := []string{"1 true", "2 true", "3 true", "4 false"}; !slices.Equal(rows, want) {
		t.Errorf("answered %q, want %q", rows, want)
	}
	if n := one[int](t, h, `SELECT count(*)::int FROM leasehold.job_data WHERE payload = '\x00ff' AND NOT is_json`); n != 1 {
		t.Error("the bytes of data were not kept")
	}
}

// Callers by SQL and by the service want the same keys at once: one job each.
func TestR33OneKeyOneJobBySQLAndByTheService(t *testing.T) {
	t.Parallel()
	h := newSQLRoles(t)
	const keys, callers = 20, 6
	var mu sync.Mutex
	created, ids := map[string]int{}, map[string]map[store.JobID]bool{}
	note := func(key string, id store.JobID, made bool) {
		mu.Lock()
		defer mu.Unlock()
		if ids[key] == nil {
			ids[key] = map[store.JobID]bool{}
		}
		ids[key][id] = true
		if made {
			created[key]++
		}
	}
	var all sync.WaitGroup
	for c := range callers {
		app := h.producer(t)
		all.Go(func() {
			for k := range keys {
				key := fmt.Sprint("key ", k)
				var id store.JobID
				var made bool
				var err error
				if c%2 == 0 {
					err = app.conn.QueryRow(context.Background(), `SELECT job_id, created FROM leasehold.enqueue('q', '{}', idempotency_key => $1)`, key).Scan(&id, &made)
				} else {
					var out []store.Enqueued
					out, err = h.store.Enqueue(context.Background(), []store.NewJob{{Queue: "q", IdempotencyKey: &key, Payload: store.Payload{Data: []byte("{}"), JSON: true}}})
					if err == nil {
						id, made, err = out[0].JobID, out[0].Created, out[0].Err
					}
				}
				if err != nil {
					t.Errorf("caller %d, %s: %v", c, key, err)
					return
				}
				note(key, id, made)
			}
		})
	}
	all.Wait()
	for k := range keys {
		if key := fmt.Sprint("key ", k); created[key] != 1 || len(ids[key]) != 1 {
			t.Errorf("%s: created %d times, jobs %v", key, created[key], ids[key])
		}
	}
}

// An open transaction has a key: others are told so soon, by SQL and by the service, and
// nobody waits for as long as it is open.
func TestR32AKeyOfAnOpenTransactionStopsNobody(t *testing.T) {
	t.Parallel()
	h := newSQLRoles(t)
	holder, other := h.producer(t), h.producer(t)
	const call = `SELECT job_id FROM leasehold.enqueue('q', idempotency_key => 'held')`
	holder.exec(`BEGIN`)
	held := holder.job(call)
	if got := other.refused(call); got != "JOB_BUSY idempotency_key" {
		t.Errorf("another session: %q", got)
	}
	if got := other.refused(`SELECT leasehold.enqueue_many('q', ARRAY['{"idempotency_key":"free"}', '{"idempotency_key":"held"}']::json[])`); got != "JOB_BUSY idempotency_key" {
		t.Errorf("another session's batch: %q", got)
	}
	out, err := h.store.Enqueue(store.Impatient(t.Context()), []store.NewJob{
		{Queue: "q", IdempotencyKey: new("held")}, {Queue: "q", IdempotencyKey: new("free")}, {Queue: "q"},
	})
	if got := faults(out, enqueueErr); err != nil || !slices.Equal(got, []string{busy, "ok", "ok"}) {
		t.Errorf("the service: %q, %v", got, err)
	}
	holder.exec(`COMMIT`)
	if id := other.job(call); id != held {
		t.Errorf("after the commit the key belongs to %d, not to %d", id, held)
	}
	if got := other.refused(`SELECT leasehold.enqueue('q', '{}', idempotency_key => 'held')`); got != "IDEMPOTENCY_KEY_REUSED idempotency_key" {
		t.Errorf("another payload: %q", got)
	}
}

// A queue whose deletion is under way is waited for, but not for ever.
func TestR32AQueueThatIsHeldIsBusy(t *testing.T) {
	t.Parallel()
	h := newSQLRoles(t)
	holder, app := newStranger(t, h.URL), h.producer(t)
	holder.exec(`BEGIN`)
	holder.exec(`SELECT FROM leasehold.queues WHERE name = 'q' FOR UPDATE`)
	if got := app.refused(`SELECT leasehold.enqueue('q')`); got != "JOB_BUSY" {
		t.Errorf("refused with %q", got)
	}
	holder.exec(`ROLLBACK`)
	app.exec(`SELECT leasehold.enqueue('q')`)
}

// An interval of days is that many times 24 hours, in every time zone and month.
func TestR30SpansOfDaysHaveTheirHours(t *testing.T) {
	t.Parallel()
	h := newSQLRoles(t)
	app := h.producer(t)
	app.exec(`SET timezone = 'America/New_York'`)
	for n := range 13 {
		id := app.job(`SELECT job_id FROM leasehold.enqueue('q', delay => make_interval(months => $1, days => 1))`, n)
		job := h.comparable(t, id)
		if wait, want := job.RunAt.Sub(job.CreatedAt), time.Duration(n*30+1)*24*time.Hour; n < 12 && wait != want {
			t.Errorf("%d months and a day are %v, want %v", n, wait, want)
		}
	}
}
