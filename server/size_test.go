package server

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
)

// The clients of these tests have gRPC's default receive limit of 4 MiB: an answer above it
// is an error at the client, and what it carried is lost.

// wordyJob is a job with every text at its bound and nothing that a view would drop.
func wordyJob(id int) store.Job {
	text, owner := strings.Repeat("e", store.MaxErrorTextBytes), strings.Repeat("o", 256)
	return store.Job{
		ID: store.JobID(id), Queue: strings.Repeat("q", 128), State: store.Pending, Subject: &owner, IdempotencyKey: &owner,
		LastError: &store.JobError{Code: strings.Repeat("c", 128), Message: text, Details: text},
	}
}

func TestR4_ListOfWordyJobsStaysUnder4MiB(t *testing.T) {
	st := newStore(t, "q")
	st.listJobs = func(_ context.Context, _ store.JobFilter, _ bool, p store.Page) (store.JobPage, error) {
		var page store.JobPage
		for id := int(p.After) + 1; id <= 300 && len(page.Jobs) < p.Size; id++ {
			page.Jobs = append(page.Jobs, wordyJob(id))
		}
		if len(page.Jobs) == p.Size {
			page.Next = int64(page.Jobs[p.Size-1].ID)
		}
		return page, nil
	}
	s := serve(t, st, Config{})
	req, seen := &pb.ListJobsRequest{PageSize: proto.Int32(1000)}, 0
	for pages := 1; ; pages++ {
		resp, err := s.jobs.ListJobs(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range resp.GetJobs() {
			if seen++; j.GetJobId() != fmt.Sprint(seen) {
				t.Fatalf("job %s in place %d", j.GetJobId(), seen)
			}
		}
		if req.PageToken = resp.GetNextPageToken(); req.PageToken == "" {
			if pages < 3 || seen != 300 {
				t.Errorf("%d jobs in %d pages", seen, pages)
			}
			return
		}
	}
}

func TestR4_JobOfAnyHistoryRemainsReadable(t *testing.T) {
	st := newStore(t, "q")
	text := strings.Repeat("e", store.MaxErrorTextBytes)
	st.last = func(_ context.Context, id store.JobID, n, bytes int) ([]store.LeaseRecord, error) {
		if bytes > maxAnswerBytes {
			t.Errorf("asked for %d bytes of leases", bytes)
		}
		records := make([]store.LeaseRecord, n) // a store that looks at no bytes
		for i := range records {
			records[i] = store.LeaseRecord{JobID: id, LeaseNo: int64(i + 1), Error: &store.JobError{Message: text, Details: text}}
			for range store.MaxStageChanges {
				records[i].Stages = append(records[i].Stages, store.StageChange{At: time.Now(), Stage: strings.Repeat("s", 128)})
			}
		}
		return records, nil
	}
	s := serve(t, st, Config{})
	id := s.enqueueOne(t, &pb.EnqueueRequest{Queue: "q", Payload: data(1 << 20)})
	resp, err := s.jobs.GetJob(t.Context(), &pb.GetJobRequest{
		By: &pb.GetJobRequest_JobId{JobId: id}, View: pb.JobView_JOB_VIEW_FULL, RecentLeases: proto.Int32(100),
	})
	if err != nil {
		t.Fatal(err)
	}
	n := len(resp.GetLeases())
	if n < 10 || n >= 100 {
		t.Fatalf("%d leases", n)
	}
	for i, l := range resp.GetLeases() { // the latest, oldest first
		if want := int64(100 - n + 1 + i); l.GetLeaseNo() != want {
			t.Errorf("lease %d in place %d, want %d", l.GetLeaseNo(), i, want)
		}
	}
}

// TestR9_AnswerOfWordyLeasesStaysUnder4MiB: the texts of last errors go first, then the last
// leases, and those are given back.
func TestR9_AnswerOfWordyLeasesStaysUnder4MiB(t *testing.T) {
	for name, c := range map[string]struct{ jobs, content, delivered int }{
		"errors above content": {1000, 1 << 10, 1000},
		"too much content":     {100, 64 << 10, 62},
		"one job of any size":  {1, 1 << 20, 1},
	} {
		t.Run(name, func(t *testing.T) {
			st := newStore(t, "q")
			asked := 0
			st.acquire = func(_ context.Context, items []store.Acquire) ([]store.Acquired, error) {
				asked = items[0].MaxBytes
				got := store.Acquired{}
				for id := 1; id <= c.jobs; id++ {
					l := store.Lease{Job: wordyJob(id), LeaseNo: 1}
					l.Job.Payload = &store.Payload{Data: make([]byte, c.content)}
					got.Leases = append(got.Leases, l)
				}
				return []store.Acquired{got}, nil
			}
			var back []store.LeaseRef
			st.undeliver = func(_ context.Context, refs []store.LeaseRef, _ *string) error {
				back = refs
				return nil
			}
			s := serve(t, st, Config{})
			resp, err := s.leases.AcquireLease(t.Context(), &pb.AcquireLeaseRequest{
				Queues: []string{"q"}, LeaseOwner: "w", MaxJobs: proto.Int32(int32(c.jobs)),
			})
			if err != nil {
				t.Fatal(err)
			}
			n := len(resp.GetLeases())
			if n != c.delivered || n+len(back) != c.jobs {
				t.Errorf("%d leases delivered and %d given back of %d, want %d delivered", n, len(back), c.jobs, c.delivered)
			}
			if len(back) > 0 && back[0].JobID != store.JobID(n+1) {
				t.Errorf("given back from job %d on, want %d", back[0].JobID, n+1)
			}
			if asked <= 0 || asked > store.DefaultAnswerBytes {
				t.Errorf("asked for %d bytes", asked)
			}
		})
	}
}
