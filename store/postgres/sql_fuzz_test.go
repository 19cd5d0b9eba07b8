package postgres_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/leasehold/leasehold/store"
)

// toldClasses are what a function may answer beside its own refusals (LH): that its caller's
// text is no value of the argument's type. Anything else (a constraint, a name that is not
// there, an internal error) is a hole in what the function checks.
var toldClasses = []string{"LH", "22"}

func checkSQLError(t *testing.T, err error) {
	t.Helper()
	if err == nil {
		return
	}
	refused, is := errors.AsType[*pgconn.PgError](err)
	if !is {
		t.Fatal(err) // the session is lost
	}
	for _, class := range toldClasses {
		if strings.HasPrefix(refused.Code, class) {
			return
		}
	}
	t.Fatalf("%s: %s (%s)", refused.Code, refused.Message, refused.Where)
}

// existing takes most names for that of a queue that exists: what lies behind its look-up is
// reached by nothing else.
func existing(queue string) string {
	if len(queue)%4 != 0 {
		return "q"
	}
	return queue
}

// FuzzSQLEnqueue calls leasehold.enqueue as a producer: any arguments are stored or refused.
func FuzzSQLEnqueue(f *testing.F) {
	h := newSQLRoles(f)
	producer := h.producer(f)
	const sql = `SELECT e.job_id FROM leasehold.enqueue($1, payload => $2::text, data => $3::bytea, headers => $4::text::jsonb, subject => $5::text,
	    priority => $6::integer, delay => $7::interval, idempotency_key => $8::text, max_attempts => $9::integer, backoff_factor => $10::float8) e`
	f.Add("q", `{"a":1}`, []byte(nil), `{"h":"v"}`, "s", int32(5), int64(0), "k", int32(1), 2.0)
	f.Add("Q  Q", "{", []byte("x"), `[]`, "", int32(0), int64(-1), "", int32(-1), -1.0)
	f.Add("q'); --x", `"\u0000"`, []byte(nil), `{"h":{"a":1}}`, "\x00", int32(10), int64(1)<<62, strings.Repeat("k", 257), int32(1001), 1e308)
	f.Fuzz(func(t *testing.T, queue, payload string, data []byte, headers, subject string, priority int32, delay int64, key string, attempts int32, factor float64) {
		var text *string
		if data == nil || len(payload) > 0 {
			text = &payload
		}
		var id int64
		err := producer.conn.QueryRow(t.Context(), sql, existing(queue), text, data, headers, subject, priority,
			time.Duration(delay), key, attempts, factor).Scan(&id)
		checkSQLError(t, err)
		if err == nil && id <= 0 {
			t.Fatalf("job %d", id)
		}
	})
}

// FuzzSQLEnqueueMany calls leasehold.enqueue_many with any item of JSON.
func FuzzSQLEnqueueMany(f *testing.F) {
	h := newSQLRoles(f)
	producer := h.producer(f)
	for _, seed := range []string{
		`{"payload":{"a":1}}`, `{"queue":"q","data":"AAAA","headers":{"a":"b"}}`, `{}`, `[1]`, `null`, `{"payload":null,"data":null}`, `{"priority":"x"}`,
		`{"delay":"1 day","run_at":"2026-01-01"}`, `{"max_runtime":"-1s"}`, `{"content_type":7}`, `{"backoff_factor":"NaN"}`, `{"run_at":"infinity"}`,
		`{"unknown":1}`, `{"data":"no base64"}`, `{"headers":"x"}`, `{"payload":"\u0000"}`, `{"delay":"178000000 years"}`,
	} {
		f.Add("q", seed)
	}
	f.Fuzz(func(t *testing.T, queue, item string) {
		_, err := producer.conn.Exec(t.Context(), `SELECT * FROM leasehold.enqueue_many($1, ARRAY['{}'::json, $2::text::json])`, existing(queue), item)
		checkSQLError(t, err)
	})
}

// FuzzSQLLease calls leasehold.assert_lease and leasehold.complete as a worker, with any lease.
func FuzzSQLLease(f *testing.F) {
	h := newSQLRoles(f)
	worker := h.worker(f)
	id := h.producer(f).job(`SELECT e.job_id FROM leasehold.enqueue('q', payload => '{}') e`)
	if _, err := h.store.Acquire(f.Context(), []store.Acquire{{Queues: []string{"q"}, Owner: "w", MaxJobs: 1}}); err != nil {
		f.Fatal(err)
	}
	f.Add(int64(id), int64(1), `{"a":1}`, []byte(nil), "application/json")
	f.Add(int64(id), int64(2), ``, []byte("x"), "")
	f.Add(int64(-1), int64(1)<<62, `{`, []byte(nil), "\x00")
	f.Fuzz(func(t *testing.T, job, lease int64, result string, data []byte, contentType string) {
		_, err := worker.conn.Exec(t.Context(), `SELECT leasehold.assert_lease($1, $2)`, job, lease)
		checkSQLError(t, err)
		var text *string
		if result != "" {
			text = &result
		}
		_, err = worker.conn.Exec(t.Context(), `SELECT * FROM leasehold.complete($1, $2, $3::text, $4::bytea, $5::text)`, job, lease, text, data, contentType)
		checkSQLError(t, err)
	})
}
