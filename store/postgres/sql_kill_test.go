package postgres_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/store"
)

// blows are when the session of a COMMIT is struck.
var blows = []string{"never", "before", "beside", "beside, its socket", "behind"}

// TestR46CompleteAndABusinessTableCommitTogether completes jobs and marks payments in one
// transaction whose session is killed at its COMMIT, 500 times: both happen or neither, and the
// service says the same as the table.
func TestR46CompleteAndABusinessTableCommitTogether(t *testing.T) {
	t.Parallel()
	h := newSQLRoles(t)
	h.Exec(t, `CREATE TABLE public.payments (job_id bigint PRIMARY KEY, settled_by bigint)`)
	h.Exec(t, `GRANT SELECT, UPDATE ON public.payments TO `+workerLogin)
	const n, hands = 500, 4
	refs := h.leases(t, n)
	h.Exec(t, `INSERT INTO public.payments (job_id) SELECT id FROM leasehold.jobs`)
	var both, neither atomic.Int64
	var all sync.WaitGroup
	for hand := range hands {
		all.Go(func() {
			for i := hand; i < n; i += hands {
				blow := blows[i/hands%len(blows)]
				settled, err := h.settleUnder(blow, as(t, h.URL, workerLogin), refs[i])
				if err != nil {
					t.Errorf("job %d, killed %s: %v", refs[i].JobID, blow, err)
				} else if settled {
					both.Add(1)
				} else {
					neither.Add(1)
				}
			}
		})
	}
	all.Wait()
	t.Logf("%d times both, %d times neither", both.Load(), neither.Load())
	if both.Load() < n/10 || neither.Load() < n/10 {
		t.Errorf("%d times both, %d times neither: the blows do not strike", both.Load(), neither.Load())
	}
}

// settleUnder works on one payment and tells whether it was settled, or what is wrong.
func (h *harness) settleUnder(blow, url string, ref store.LeaseRef) (settled bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return false, err
	}
	pid := conn.PgConn().PID()
	for _, sql := range []string{
		`BEGIN`, fmt.Sprintf(`SELECT leasehold.complete(%d, %d, '{"settled": true}')`, ref.JobID, ref.LeaseNo),
		fmt.Sprintf(`UPDATE payments SET settled_by = %d WHERE job_id = %d`, ref.LeaseNo, ref.JobID),
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return false, fmt.Errorf("%s: %w", sql, err)
		}
	}
	if err := h.commitUnder(ctx, blow, conn, pid); err != nil {
		return false, err
	}
	_ = conn.Close(ctx) // it is broken, or has nothing more to say
	if err := h.awaitGone(ctx, pid); err != nil {
		return false, err
	}
	return h.agreed(ctx, blow, ref)
}

// commitUnder sends COMMIT and strikes. What the client hears of it proves nothing.
func (h *harness) commitUnder(ctx context.Context, blow string, conn *pgx.Conn, pid uint32) error {
	kill := func() error {
		_, err := h.SQL.Exec(ctx, `SELECT pg_terminate_backend($1)`, pid)
		return err
	}
	commit := make(chan struct{})
	send := func() {
		defer close(commit)
		_, _ = conn.Exec(ctx, `COMMIT`)
	}
	var err error
	switch blow {
	case "never":
		send()
	case "before":
		err = kill()
		send()
	case "behind":
		send()
		err = kill()
	case "beside, its socket":
		go send()
		err = conn.PgConn().Conn().Close()
	default:
		go send()
		err = kill()
	}
	<-commit
	return err
}

// awaitGone returns when the session has ended, whichever way.
func (h *harness) awaitGone(ctx context.Context, pid uint32) error {
	for {
		var there bool
		if err := h.SQL.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)`, pid).Scan(&there); err != nil || !there {
			return err
		}
	}
}

// agreed compares the application's table with the job, and with what the service says to the
// holder of the lease who repeats his Complete.
func (h *harness) agreed(ctx context.Context, blow string, ref store.LeaseRef) (settled bool, err error) {
	var state string
	var kept bool
	err = h.SQL.QueryRow(ctx, `
SELECT p.settled_by IS NOT NULL, j.state, j.result IS NOT NULL FROM public.payments p JOIN leasehold.all_jobs j ON j.id = p.job_id WHERE p.job_id = $1`,
		int64(ref.JobID)).Scan(&settled, &state, &kept)
	if err != nil {
		return false, err
	}
	if completed := state == "COMPLETED"; completed != settled || kept != settled {
		return false, fmt.Errorf("the payment is settled: %v, the job is %s, its result is kept: %v", settled, state, kept)
	}
	if settled && blow == "before" || !settled && (blow == "never" || blow == "behind") {
		return false, fmt.Errorf("settled: %v", settled)
	}
	out, err := h.store.Complete(ctx, []store.Complete{{Lease: ref, Result: store.Payload{Data: []byte(`{"settled": true}`), JSON: true}}})
	if err != nil || out[0].Err != nil || out[0].AlreadyApplied != settled || out[0].Late {
		return false, fmt.Errorf("settled: %v, the service answers %+v, %w", settled, out, err)
	}
	return settled, nil
}
