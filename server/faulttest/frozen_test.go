package faulttest

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// TestAReplicaThatFreezesInATransactionHoldsNoJobForEver: a replica whose machine stops in
// the middle of a transaction leaves its locks behind. Its peer's TCP stack answers for it, so
// that only a limit of the database's own ends that session.
func TestAReplicaThatFreezesInATransactionHoldsNoJobForEver(t *testing.T) {
	t.Parallel()
	f := newFleet(t, database(t), 2, "--watcher-interval", "200ms")
	frozen, other := f.members[0], f.members[1]
	q := opened(t, f, &pb.Queue{Name: "q"})
	id := stored(t, frozen, 1, &pb.EnqueueRequest{Queue: q})[0]
	lease := taken(t, frozen, q, 1, time.Hour)[0]

	stranger, err := pgx.Connect(t.Context(), f.db.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close(context.Background())
	for _, sql := range []string{`CREATE TABLE public.gate (n int)`, `
CREATE FUNCTION public.wait_at_gate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    LOCK TABLE public.gate IN ACCESS SHARE MODE;
    RETURN NULL;
END $$`,
		`CREATE TRIGGER gate AFTER DELETE ON leasehold.jobs FOR EACH ROW EXECUTE FUNCTION public.wait_at_gate()`,
		`BEGIN`, `LOCK TABLE public.gate`} {
		if _, err := stranger.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	go func() {
		_, _ = frozen.leases.Complete(t.Context(), &pb.CompleteRequest{
			LeaseToken: lease.GetLeaseToken(), ThenEnqueue: []*pb.EnqueueRequest{{Queue: q}},
		})
	}()
	eventually(t, "its transaction waits behind the lock of the job", func() bool {
		return look[bool](t, f, `SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'public.gate'::regclass AND NOT granted)`)
	})
	frozen.Freeze()
	if _, err := stranger.Exec(t.Context(), `ROLLBACK`); err != nil {
		t.Fatal(err)
	}
	defer frozen.Thaw()
	began := time.Now()
	eventually(t, "the job is to be had again", func() bool {
		_, err := other.leases.Heartbeat(t.Context(), &pb.HeartbeatRequest{LeaseToken: lease.GetLeaseToken()})
		return err == nil
	})
	t.Logf("job %s was locked for %v", id, time.Since(began))
}
