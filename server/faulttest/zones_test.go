package faulttest

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/internal/replica"
)

// TestTimesAreInstantsWhateverTheZones: the replica, the database and the operator's session
// are each in another zone, two of them with summer time, and jobs run around its changes.
func TestTimesAreInstantsWhateverTheZones(t *testing.T) {
	t.Parallel()
	url := database(t)
	f := newFleet(t, url, 0)
	f.db.Exec(t, `ALTER DATABASE `+look[string](t, f, `SELECT quote_ident(current_database())`)+` SET timezone = 'America/St_Johns'`)
	f.members = []*member{newMember(t, replica.Config{DatabaseURL: url, Env: []string{"TZ=Asia/Kolkata"}})}
	m := f.members[0]
	q := opened(t, f, &pb.Queue{Name: "q"})
	zone, err := time.LoadLocation("America/St_Johns")
	if err != nil {
		t.Fatal(err)
	}
	year := time.Now().UTC().Year() + 1
	for month := time.January; month <= time.December; month++ {
		for _, day := range []int{1, 7, 8, 14} { // the changes are on Sundays of March and November
			at := time.Date(year, month, day, 2, 30, 0, 123_456_000, zone)
			id := accepted(t, m.jobs.Enqueue, &pb.EnqueueRequest{Queue: q, RunAt: timestamppb.New(at)}).GetJobId()
			job := accepted(t, m.jobs.GetJob, &pb.GetJobRequest{By: &pb.GetJobRequest_JobId{JobId: id}}).GetJob()
			if !job.GetRunAt().AsTime().Equal(at) {
				t.Errorf("to run at %v it is told %v", at, job.GetRunAt().AsTime())
			}
			if stored := look[time.Time](t, f, `SELECT run_at FROM leasehold.jobs WHERE id = $1::text::bigint`, id); !stored.Equal(at) {
				t.Errorf("to run at %v it is stored as %v", at, stored)
			}
		}
	}
	// By SQL, with the column's default, in a session of a third zone.
	f.db.Exec(t, sqlPlainJob, q)
	bySQL := taken(t, m, q, 1, time.Minute)[0].GetJob()
	if age := time.Since(bySQL.GetCreatedAt().AsTime()); age < -time.Minute || age > 10*time.Minute {
		t.Errorf("a job that was stored by SQL just now was created %v ago", age)
	}
	// A day is 24 hours here, also across a change.
	delayed := accepted(t, m.jobs.Enqueue, &pb.EnqueueRequest{Queue: q, Delay: durationpb.New(360 * 24 * time.Hour)}).GetJobId()
	job := accepted(t, m.jobs.GetJob, &pb.GetJobRequest{By: &pb.GetJobRequest_JobId{JobId: delayed}}).GetJob()
	if wait := job.GetRunAt().AsTime().Sub(job.GetCreatedAt().AsTime()); (wait - 360*24*time.Hour).Abs() > 10*time.Second {
		t.Errorf("a delay of 360 days is one of %v", wait)
	}
	soon := accepted(t, m.jobs.Enqueue, &pb.EnqueueRequest{Queue: q, RunAt: timestamppb.New(time.Now().Add(time.Second).In(zone))}).GetJobId()
	eventually(t, "it runs when it is due", func() bool {
		resp := accepted(t, m.leases.AcquireLease, &pb.AcquireLeaseRequest{JobId: &soon, LeaseOwner: "w"})
		return len(resp.GetLeases()) == 1
	})
	if early := look[bool](t, f, `SELECT leased_at < run_at FROM leasehold.jobs WHERE id = $1::text::bigint`, soon); early {
		t.Error("it ran before it was due")
	}
}

// TestAKeyLivesForAllOfItsWeekThoughAnHourIsSkipped: in a zone with summer time, a week after
// a moment may be 167 hours after it.
func TestAKeyLivesForAllOfItsWeekThoughAnHourIsSkipped(t *testing.T) {
	t.Parallel()
	url := database(t)
	f := newFleet(t, url, 0)
	// An hour was skipped three days ago, and will not come back for most of a year.
	day := func(ago int) int {
		d := time.Now().AddDate(0, 0, -ago)
		return time.Date(2025, d.Month(), d.Day(), 0, 0, 0, 0, time.UTC).YearDay()
	}
	f.db.Exec(t, `ALTER DATABASE `+look[string](t, f, `SELECT quote_ident(current_database())`)+fmt.Sprintf(` SET timezone = 'AAA0BBB-1,J%d/0,J%d/0'`, day(3), day(40)))
	f.members = newFleet(t, url, 1).members
	m := f.members[0]
	q := opened(t, f, &pb.Queue{Name: "q"})
	enqueue := &pb.EnqueueRequest{Queue: q, IdempotencyKey: to("k")}
	id := accepted(t, m.jobs.Enqueue, enqueue).GetJobId()
	accepted(t, m.leases.Complete, &pb.CompleteRequest{LeaseToken: taken(t, m, q, 1, time.Hour)[0].GetLeaseToken()})
	finished := func(ago time.Duration) {
		f.db.Exec(t, `UPDATE leasehold.finished_jobs SET finished_at = now() - $1::interval`, ago)
	}
	finished(167*time.Hour + 30*time.Minute)
	if again := accepted(t, m.jobs.Enqueue, enqueue); again.GetCreated() || again.GetJobId() != id {
		t.Errorf("half an hour before its week was over the key made job %s", again.GetJobId())
	}
	finished(168*time.Hour + 30*time.Minute)
	if again := accepted(t, m.jobs.Enqueue, enqueue); !again.GetCreated() {
		t.Error("the key did not become free")
	}
}
