package faulttest

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// sqlTables are the tables of the schema, without the partitions.
const sqlTables = `
SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'leasehold'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition ORDER BY 1`

// TestColumnsThatAppearUnderLoadAreNoTrouble: an additive migration changes what statements
// with stars in them return, on each connection that has prepared one. And connections that
// break under calls that may be repeated are no trouble either.
func TestColumnsThatAppearUnderLoadAreNoTrouble(t *testing.T) {
	t.Parallel()
	changeUnderLoad(t, newFleet(t, database(t), 2))
}

// changeUnderLoad changes the schema and breaks connections while calls are made, none of
// which may fail.
func changeUnderLoad(t *testing.T, f *fleet) {
	t.Helper()
	q := opened(t, f, &pb.Queue{Name: "q"})
	ctx, end := context.WithCancel(t.Context())
	c := &clients{t: t, f: f, ctx: ctx}
	var rounds atomic.Int64
	for n := range 4 {
		c.all.Go(func() {
			for i := 0; ctx.Err() == nil && oneOfEach(t, f.members[n%2], q, fmt.Sprint("key ", n, " ", i)); i++ {
				rounds.Add(1)
			}
		})
	}
	defer c.all.Wait()
	defer end()
	further := func() { // several rounds with things as they are
		before := rounds.Load()
		eventually(t, "work goes on", func() bool { return rounds.Load() > before+4 || t.Failed() })
	}
	further()
	for _, table := range lookAll(t, f, sqlTables) {
		f.db.Exec(t, `ALTER TABLE leasehold.`+table+` ADD COLUMN added_later int`)
		further()
	}
	// A type that a prepared statement returns.
	f.db.Exec(t, `ALTER TABLE leasehold.jobs ALTER COLUMN bytes TYPE bigint`)
	further()
	for range 3 {
		for _, m := range f.members {
			m.inner.Cut()
		}
		further()
	}
	end()
	c.all.Wait()
	wantSound(t, f, false)
}

// oneOfEach makes one call of each kind that may be repeated, none of which may fail.
func oneOfEach(t *testing.T, m *member, queue, key string) (ok bool) {
	ctx := t.Context()
	report := func(call string, err error) bool {
		if err != nil {
			t.Errorf("%s: %v", call, err)
		}
		return err == nil
	}
	made, err := m.jobs.Enqueue(ctx, &pb.EnqueueRequest{Queue: queue, IdempotencyKey: &key, Payload: &pb.Payload{Content: &pb.Payload_Json{Json: "1"}}})
	if !report("Enqueue", err) {
		return false
	}
	id := made.GetJobId()
	for last := range 2 {
		resp, err := m.leases.AcquireLease(ctx, &pb.AcquireLeaseRequest{JobId: &id, LeaseOwner: "w", RequestId: to(fmt.Sprint(key, last))})
		if !report("AcquireLease", err) {
			return false
		}
		if len(resp.GetLeases()) != 1 {
			t.Errorf("AcquireLease of job %s: %v", id, resp)
			return false
		}
		token := resp.GetLeases()[0].GetLeaseToken()
		_, err = m.leases.Heartbeat(ctx, &pb.HeartbeatRequest{LeaseToken: token, Stage: to("s"), Checkpoint: []byte("c")})
		if !report("Heartbeat", err) {
			return false
		}
		if last == 0 {
			_, err = m.leases.Fail(ctx, &pb.FailRequest{LeaseToken: token, RetryAfter: durationpb.New(0), Error: &pb.JobError{Code: "c"}})
		} else {
			_, err = m.leases.Complete(ctx, &pb.CompleteRequest{LeaseToken: token, Result: &pb.Payload{Content: &pb.Payload_Json{Json: "2"}}})
		}
		if !report("the end", err) {
			return false
		}
	}
	_, err = m.jobs.GetJob(ctx, &pb.GetJobRequest{By: &pb.GetJobRequest_JobId{JobId: id}, View: pb.JobView_JOB_VIEW_FULL, RecentLeases: to(int32(5))})
	if !report("GetJob", err) {
		return false
	}
	_, err = m.leases.ListStuck(ctx, &pb.ListStuckRequest{Queue: &queue})
	return report("ListStuck", err)
}
