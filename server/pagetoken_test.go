package server

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
)

func TestPageTokensAreBoundToTheirList(t *testing.T) {
	key := bytes.Repeat([]byte{7}, 32)
	tokens, now := newPageTokens(key), time.Unix(1000, 0)
	queue, state := "q", []store.State{store.Dead}
	scope := pageScope{"ListJobs", store.JobFilter{Queue: &queue, States: state, CreatedFrom: &now}}
	token := tokens.seal(scope, 42)
	if got, err := tokens.open(scope, token); err != nil || got != 42 {
		t.Fatalf("opened %d, %v", got, err)
	}
	same, otherQueue, later := "q", "p", now.Add(time.Microsecond)
	if _, err := newPageTokens(key).open(pageScope{"ListJobs", store.JobFilter{Queue: &same, States: state, CreatedFrom: &now}}, token); err != nil {
		t.Errorf("an equal filter on another replica: %v", err)
	}
	for name, s := range map[string]pageScope{
		"method":      {"ListStuck", scope.filter},
		"queue":       {"ListJobs", store.JobFilter{Queue: &otherQueue, States: state, CreatedFrom: &now}},
		"no queue":    {"ListJobs", store.JobFilter{States: state, CreatedFrom: &now}},
		"state":       {"ListJobs", store.JobFilter{Queue: &queue, CreatedFrom: &now}},
		"microsecond": {"ListJobs", store.JobFilter{Queue: &queue, States: state, CreatedFrom: &later}},
		"no filter":   {"ListJobs", nil},
	} {
		if got, err := tokens.open(s, token); err == nil {
			t.Errorf("another %s opened it: %d", name, got)
		}
	}
	lease := store.NewTokens(key).Seal(store.LeaseRef{JobID: 42, LeaseNo: 1})
	for name, bad := range map[string]string{
		"shorter": token[:len(token)-1], "longer": token + "A", "padded": token + "=", "garbage": "!", "version only": "AQ",
		"lease token": lease, "other key": newPageTokens([]byte("x")).seal(scope, 42), "name": tokens.sealName(scope, "q"),
	} {
		if got, err := tokens.open(scope, bad); err == nil {
			t.Errorf("%s opened: %d", name, got)
		}
	}
	if _, ok := store.NewTokens(key).Open(token); ok {
		t.Error("a page token passes for a lease token")
	}
}

// TestEveryBitOfAPageTokenCounts.
func TestEveryBitOfAPageTokenCounts(t *testing.T) {
	tokens := newPageTokens([]byte("key"))
	raw, err := pageEncoding.DecodeString(tokens.seal(pageScope{"m", nil}, 42))
	if err != nil {
		t.Fatal(err)
	}
	for bit := range len(raw) * 8 {
		changed := slices.Clone(raw)
		changed[bit/8] ^= 1 << (bit % 8)
		if got, err := tokens.open(pageScope{"m", nil}, pageEncoding.EncodeToString(changed)); err == nil {
			t.Errorf("with bit %d changed it opened: %d", bit, got)
		}
	}
}

func TestR4_ListsPageToTheirEnd(t *testing.T) {
	st := newStore(t, "a", "b", "c")
	s := serve(t, st, Config{})
	var want []string
	for i := range 7 {
		id := s.enqueueOne(t, &pb.EnqueueRequest{Queue: "a", Subject: proto.String(fmt.Sprint("s/", i%2))})
		if i%2 == 0 {
			want = append(want, id)
		}
	}
	filter := &pb.JobFilter{Queue: proto.String("a"), Subject: proto.String("s/0")}
	var got []string
	token := ""
	for page := 0; page < 10; page++ {
		resp, err := s.jobs.ListJobs(t.Context(), &pb.ListJobsRequest{Filter: filter, PageSize: proto.Int32(2), PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range resp.GetJobs() {
			got = append(got, j.GetJobId())
		}
		if token = resp.GetNextPageToken(); token == "" {
			break
		}
		_, err = s.jobs.ListJobs(t.Context(), &pb.ListJobsRequest{PageToken: token})
		if reasonOf(err) != "INVALID_TOKEN" {
			t.Errorf("without the filter the token gave %v", err)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("listed %v, want %v", got, want)
	}
	var names []string
	for token = ""; ; {
		resp, err := s.queues.ListQueues(t.Context(), &pb.ListQueuesRequest{PageSize: proto.Int32(2), PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range resp.GetQueues() {
			names = append(names, q.GetName())
		}
		if token = resp.GetNextPageToken(); token == "" {
			break
		}
	}
	if strings.Join(names, "") != "abc" {
		t.Errorf("queues %v", names)
	}
}

func TestR22_BulkActsResumeByToken(t *testing.T) {
	st := newStore(t, "q")
	s := serve(t, st, Config{})
	for range 5 {
		s.enqueueOne(t, &pb.EnqueueRequest{Queue: "q"})
	}
	req := &pb.CancelJobsRequest{
		Selection: &pb.JobSelection{Filter: &pb.JobFilter{Queue: proto.String("q")}},
		BatchSize: proto.Int32(2), Actor: "op", Note: "why", DryRun: true,
	}
	cancelled := 0
	for range 10 {
		resp, err := s.queues.CancelJobs(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range resp.GetResults() {
			if r.GetState() == pb.JobState_JOB_STATE_CANCELLED {
				cancelled++
			}
		}
		if req.PageToken = resp.GetNextPageToken(); req.PageToken == "" {
			break
		}
		if _, err := s.queues.RetryJobs(t.Context(), &pb.RetryJobsRequest{Selection: req.GetSelection(), PageToken: req.GetPageToken()}); reasonOf(err) != "INVALID_TOKEN" {
			t.Errorf("the token of CancelJobs in RetryJobs: %v", err)
		}
	}
	if cancelled != 5 {
		t.Errorf("%d jobs would be cancelled, want 5", cancelled)
	}
	req.DryRun, req.Selection = false, &pb.JobSelection{JobIds: []string{"1", "999"}}
	resp, err := s.queues.CancelJobs(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if r := resp.GetResults(); len(r) != 2 || r[0].GetState() != pb.JobState_JOB_STATE_CANCELLED || itemText(r[1].GetError()) != "JOB_NOT_FOUND" {
		t.Errorf("by ids: %v", r)
	}
}
