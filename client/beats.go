package client

import (
	"context"
	"log/slog"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

const (
	// beatLeast and beatMost bound the deadline of one heartbeat call, which is the interval of
	// its leases. Others are sent beside it long before.
	beatLeast = 500 * time.Millisecond
	beatMost  = 10 * time.Second
	// carryAgain is how many answered heartbeats must carry a note of which an earlier sending
	// was not answered: that one may still arrive, after newer ones, and undo them.
	carryAgain = 3
)

// beat is one BatchHeartbeat call.
type beat struct {
	leases   []*lease
	versions []int // of the notes that the items carry
	req      *pb.BatchHeartbeatRequest
	way      *channel
	sent     instant
	deadline time.Duration
	urgent   bool
	sooner   float64 // share of its gap after which the next call comes
}

// prepare makes the call for as many leases as fit, and returns those that are left.
func (k *keeper) prepare(batch []*lease, way *channel, now instant, sooner float64) (*beat, []*lease) {
	b := &beat{req: &pb.BatchHeartbeatRequest{}, way: way, sent: now, deadline: beatMost, sooner: sooner}
	bytes := 0
	for i, l := range batch {
		item := l.item()
		if bytes += proto.Size(item); len(b.leases) == batchItems || (bytes > batchBytes && i > 0) {
			return b.counted(k), batch[i:]
		}
		if l.tries > 0 && l.note.owed > 0 {
			l.note.owed = carryAgain
		}
		b.urgent = b.urgent || l.urgent != 0
		b.deadline = min(b.deadline, max(l.interval, beatLeast))
		b.leases, b.versions = append(b.leases, l), append(b.versions, l.note.version)
		b.req.Items = append(b.req.Items, item)
		l.way, l.urgent, l.beatAt = way, 0, now.add(b.gap(l, now))
		l.under++
		l.tries++
	}
	return b.counted(k), nil
}

// gap is that of a lease, made different from call to call, so that workers whose calls failed
// together do not come back together, and the same for the leases of one call.
func (b *beat) gap(l *lease, now instant) time.Duration {
	return time.Duration(float64(l.gap(now)) * b.sooner)
}

func (b *beat) counted(k *keeper) *beat {
	if b.urgent {
		k.urgent++
	}
	return b
}

// item is the heartbeat of a lease, as of now.
func (l *lease) item() *pb.HeartbeatRequest {
	req := &pb.HeartbeatRequest{LeaseToken: l.token}
	if l.note.owed > 0 {
		req.Stage, req.Progress, req.Checkpoint = l.note.stage, l.note.progress, l.note.checkpoint
	}
	return req
}

// send makes the call and deals with what comes back.
func (k *keeper) send(ctx context.Context, b *beat) {
	bounded, cancel := context.WithTimeout(ctx, b.deadline)
	defer cancel()
	resp, err := b.way.leases.BatchHeartbeat(bounded, b.req)
	var failed *CallError
	if err == nil && len(resp.GetResults()) != len(b.leases) {
		failed = &CallError{Code: codes.Internal, Message: "a batch with too few results"}
	} else if err != nil {
		failed = callError(err)
	}
	k.metrics.beat(failed)
	if failed != nil && ctx.Err() == nil {
		k.log.LogAttrs(ctx, slog.LevelWarn, "heartbeat failed", slog.Int("leases", len(b.leases)), slog.Any("error", failed))
	}
	for _, after := range k.apply(b, resp, failed) {
		after()
	}
}

// apply notes the answers, and returns what to do about them outside the lock.
func (k *keeper) apply(b *beat, resp *pb.BatchHeartbeatResponse, failed *CallError) (after []func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if b.urgent {
		k.urgent--
	}
	for i, l := range b.leases {
		l.under--
		e := failed
		if e == nil {
			e = itemError(resp.GetResults()[i].GetError())
		}
		switch {
		case l.deferred != nil && l.under == 0:
			end := l.deferred
			l.deferred = nil
			after = append(after, func() { k.ends.add(end) })
		case l.state >= closing || l.lost:
			// Nobody asks about it any more.
		case e == nil:
			after = append(after, k.renewed(l, b, b.versions[i], resp.GetResults()[i].GetOk())...)
		case failed == nil && e.leaseOver():
			after = append(after, k.gave(l, e)...)
		default:
			k.refused(l, b, b.versions[i], e)
		}
	}
	k.look()
	return after
}

// renewed notes that a lease was renewed.
func (k *keeper) renewed(l *lease, b *beat, version int, ok *pb.HeartbeatResponse) (after []func()) {
	if b.sent >= l.asked {
		l.asked = b.sent
		l.renew(b.sent, ok.GetRemaining().AsDuration(), ok.GetNextHeartbeatIn().AsDuration())
	}
	if l.note.version == version && l.note.owed > 0 {
		if l.note.owed--; l.note.owed == 0 {
			l.note.stage, l.note.progress, l.note.checkpoint = nil, nil, nil
		}
	}
	waiting := l.waiters[:0]
	for _, w := range l.waiters {
		if w.version <= version {
			w.done <- nil
		} else {
			waiting = append(waiting, w)
		}
	}
	if l.waiters = waiting; len(waiting) > 0 && l.urgent == 0 {
		l.urgent = b.sent
	}
	if ok.GetServerDraining() {
		after = append(after, b.way.blame)
	}
	if ok.GetCancelRequested() && !l.told {
		l.told = true
		cause := &CancelRequestedError{JobID: l.job.ID(), LeaseNo: l.job.LeaseNo()}
		after = append(after, func() { l.stop(cause) })
	}
	return after
}

// gave notes that the lease is over. While its end is under way, that will be told the same.
func (k *keeper) gave(l *lease, e *CallError) (after []func()) {
	l.lost = true
	if l.state != working {
		return nil
	}
	cause := newLost(l, e)
	l.loss = cause
	k.release(l, cause)
	l.stopAt.Store(int64(never))
	return []func(){func() {
		k.log.LogAttrs(&l.ctx, slog.LevelWarn, "lease lost", slog.String("job_id", l.job.ID()),
			slog.Int64("lease_no", l.job.LeaseNo()), slog.Any("error", cause))
		l.stop(cause)
	}}
}

// refused notes that one heartbeat did not succeed: the next is sent soon, until the lease's end.
// What the service says is out of bounds is not sent again, so that it cannot cost the lease.
func (k *keeper) refused(l *lease, b *beat, version int, e *CallError) {
	if e.Code == codes.InvalidArgument && l.note.version == version {
		l.note = note{version: version}
		k.release(l, e)
	}
	now := k.now()
	again := now.add(max(b.gap(l, now)/2, min(e.RetryAfter, l.interval)))
	if l.beatAt > again {
		l.beatAt = again
	}
}
