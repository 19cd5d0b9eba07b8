package postgres_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/postgres"
	"github.com/leasehold/leasehold/store/storetest"
)

// The login roles of the tests, each a member of one role of ours. They belong to the server
// that all tests of the process share.
const (
	producerLogin = "test_producer"
	workerLogin   = "test_worker"
	readerLogin   = "test_reader"
	serviceLogin  = "test_service"
	noneLogin     = "test_none"
)

var logins = map[string]string{
	producerLogin: "leasehold_producer", workerLogin: "leasehold_worker", readerLogin: "leasehold_reader", serviceLogin: "leasehold_service", noneLogin: "",
}

const loginPassword = "only for tests"

// migrateWithLogins is migrate, and makes the login roles. Two templates may be made at once.
func migrateWithLogins(ctx context.Context, url string) error {
	if err := migrate(ctx, url); err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	for login, role := range logins {
		_, err := pool.Exec(ctx, fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD '%s'", login, loginPassword))
		if err != nil {
			return err
		}
		if role == "" {
			continue
		}
		if _, err := pool.Exec(ctx, fmt.Sprintf("GRANT %s TO %s", role, login)); err != nil {
			return err
		}
	}
	return nil
}

// as is the URL of a database for another user.
func as(t testing.TB, databaseURL, login string) string {
	t.Helper()
	u, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(login, loginPassword)
	return u.String()
}

// serviceHarness has Stores that may do what leasehold_service may, and nothing as owners.
type serviceHarness struct{ *harness }

func newServiceHarness(t testing.TB) *serviceHarness {
	t.Helper()
	owner := pgtest.Database(t, migrateWithLogins)
	return &serviceHarness{newHarnessOver(t, owner, openStore(t, as(t, owner, serviceLogin)))}
}

func (h *serviceHarness) Replica(t testing.TB) store.Store {
	return openStore(t, as(t, h.URL, serviceLogin))
}

// TestR46ContractBySQL holds leasehold.enqueue and leasehold.complete against the contract of
// the service's own Enqueue and Complete: same outcomes, same refusals, same rows.
func TestR46ContractBySQL(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) storetest.Harness { return newSQLHarness(t) })
}

// TestR46RandomSequencesBySQL compares both with the pure model, step by step.
func TestR46RandomSequencesBySQL(t *testing.T) {
	t.Parallel()
	storetest.RunRandom(t, func(t *testing.T) storetest.Harness { return newSQLHarness(t) })
}

type sqlHarness struct {
	*serviceHarness
	store *sqlStore
}

func newSQLHarness(t testing.TB) *sqlHarness {
	t.Helper()
	h := newServiceHarness(t)
	return &sqlHarness{serviceHarness: h, store: newSQLStore(t, h.store, h.URL)}
}

func (h *sqlHarness) Store() store.Store { return h.store }
func (h *sqlHarness) Replica(t testing.TB) store.Store {
	return newSQLStore(t, openStore(t, as(t, h.URL, serviceLogin)), h.URL)
}

// sqlStore is a Store whose jobs are enqueued and completed by SQL, each by a session that may
// do nothing else.
type sqlStore struct {
	*postgres.Store
	producer, worker *pgxpool.Pool
}

func newSQLStore(t testing.TB, s *postgres.Store, owner string) *sqlStore {
	t.Helper()
	out := &sqlStore{Store: s}
	for login, pool := range map[string]**pgxpool.Pool{producerLogin: &out.producer, workerLogin: &out.worker} {
		made, err := pgxpool.New(t.Context(), as(t, owner, login))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(made.Close)
		*pool = made
	}
	return out
}

const sqlCallEnqueue = `
SELECT job_id, created FROM leasehold.enqueue($1, payload => $2, data => $3, content_type => $4, headers => $5, subject => $6,
    priority => $7, run_at => $8, delay => $9, idempotency_key => $10, max_attempts => $11, max_expirations => $12,
    backoff_initial => $13, backoff_factor => $14, backoff_cap => $15, backoff_jitter => $16, lease_duration => $17,
    max_runtime => $18, stall_timeout => $19, cancel_grace => $20, idempotency_retention => $21)`

func enqueueCallArgs(j *store.NewJob) []any {
	var text *string
	var data []byte
	if j.Payload.JSON {
		s := string(j.Payload.Data)
		text = &s
	} else if len(j.Payload.Data) > 0 {
		data = j.Payload.Data
	}
	var headers *string
	if j.Headers != nil {
		encoded, _ := json.Marshal(j.Headers) // a map of strings can always be marshalled
		s := string(encoded)
		headers = &s
	}
	p := j.Policy
	return []any{j.Queue, text, data, j.Payload.ContentType, headers, j.Subject, j.Priority, j.RunAt, j.Delay, j.IdempotencyKey,
		p.MaxAttempts, p.MaxExpirations, p.BackoffInitial, p.BackoffFactor, p.BackoffCap, p.BackoffJitter, p.LeaseDuration,
		p.MaxRuntime, p.StallTimeout, p.CancelGrace, p.IdempotencyRetention}
}

// Enqueue is store.JobStore.Enqueue by SQL.
func (s *sqlStore) Enqueue(ctx context.Context, items []store.NewJob) ([]store.Enqueued, error) {
	out := make([]store.Enqueued, len(items))
	for i := range items {
		err := s.producer.QueryRow(ctx, sqlCallEnqueue, enqueueCallArgs(&items[i])...).Scan(&out[i].JobID, &out[i].Created)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			out[i] = store.Enqueued{Err: contractError(err, items[i].Queue, store.LeaseRef{})}
		}
	}
	return out, nil
}

// Complete is store.LeaseStore.Complete by SQL. Only the service has follow-up jobs, and the
// record of late calls, which an error of SQL would undo.
func (s *sqlStore) Complete(ctx context.Context, items []store.Complete) ([]store.Completion, error) {
	out := make([]store.Completion, len(items))
	for i, c := range items {
		var superseded *store.SupersededError
		if len(c.ThenEnqueue) == 0 {
			if out[i] = s.completeOne(ctx, c); !errors.As(out[i].Err, &superseded) {
				continue
			}
		}
		byService, err := s.Store.Complete(ctx, items[i:i+1])
		if err != nil {
			return nil, err
		}
		out[i] = byService[0]
	}
	return out, ctx.Err()
}

func (s *sqlStore) completeOne(ctx context.Context, c store.Complete) (out store.Completion) {
	var text *string
	var data []byte
	if c.Result.JSON {
		s := string(c.Result.Data)
		text = &s
	} else if len(c.Result.Data) > 0 {
		data = c.Result.Data
	}
	err := s.worker.QueryRow(ctx, `SELECT already_applied, late FROM leasehold.complete($1, $2, result => $3, data => $4, content_type => $5)`,
		c.Lease.JobID, c.Lease.LeaseNo, text, data, c.Result.ContentType).Scan(&out.AlreadyApplied, &out.Late)
	if err != nil {
		return store.Completion{Err: contractError(err, "", c.Lease)}
	}
	return out
}

var (
	jobInText    = regexp.MustCompile(`job (\d+)`)
	latestInText = regexp.MustCompile(`by lease (\d+)`)
)

// contractError is what the contract calls an error of the functions.
func contractError(err error, queue string, lease store.LeaseRef) error {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return err
	}
	switch pgErr.Code {
	case "LH001", "LH002":
		return &store.InvalidError{Field: pgErr.ColumnName, Description: pgErr.Message, TooLarge: pgErr.Code == "LH002"}
	case "LH003":
		return &store.QueueNotFoundError{Queue: queue}
	case "LH004":
		return &store.JobNotFoundError{JobID: lease.JobID}
	case "LH005":
		return &store.KeyReusedError{Queue: queue, JobID: store.JobID(inText(jobInText, pgErr.Message))}
	case "LH006":
		return &store.SupersededError{Lease: lease, CurrentLeaseNo: inText(latestInText, pgErr.Message)}
	case "LH008":
		return endedError(lease, pgErr.Message)
	case "LH009":
		return &store.ConflictError{Lease: lease}
	case "LH010":
		return &store.BusyError{What: pgErr.Message}
	}
	return err
}

// endWords are in the order of store.End.
var endWords = []string{"COMPLETED", "COMPLETED_LATE", "FAILED", "FAILED_PERMANENTLY", "EXPIRED", "OVERRAN", "STALLED", "RELEASED", "UNDELIVERED"}

func endedError(lease store.LeaseRef, text string) error {
	out := &store.EndedError{Lease: lease}
	for state := store.Pending; state <= store.Cancelled; state++ {
		if strings.HasSuffix(text, " "+state.String()) {
			out.State = state
		}
	}
	for i, word := range endWords {
		if strings.Contains(text, " as "+word+",") {
			out.End = store.End(i + 1)
		}
	}
	return out
}

func inText(pattern *regexp.Regexp, text string) int64 {
	found := pattern.FindStringSubmatch(text)
	if found == nil {
		return 0
	}
	n, _ := strconv.ParseInt(found[1], 10, 64) // it is digits
	return n
}
