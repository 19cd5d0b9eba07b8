package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// journalOf writes down calls that end as they are told.
func journalOf(t *testing.T, outcomes ...error) []byte {
	t.Helper()
	name := filepath.Join(t.TempDir(), "j")
	j, err := openJournal(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, outcome := range outcomes {
		answer := func(_ context.Context, _ string, _, reply any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
			if outcome == nil {
				proto.Merge(reply.(proto.Message), &pb.CompleteResponse{Late: true})
			}
			return outcome
		}
		err := j.intercept(t.Context(), pb.LeaseService_Complete_FullMethodName, &pb.CompleteRequest{LeaseToken: "t"}, &pb.CompleteResponse{}, nil, answer)
		if !errors.Is(err, outcome) {
			t.Errorf("the journal changes %v to %v", outcome, err)
		}
	}
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestJournal(t *testing.T) {
	t.Parallel()
	text := journalOf(t, nil, status.Error(codes.Unavailable, "gone"))
	events, err := readJournal(bytes.NewReader(text), "worker")
	if err != nil || len(events) != 2 {
		t.Fatalf("%d events, %v", len(events), err)
	}
	ok, lost := events[0].items()[0], events[1].items()[0]
	ok.event, lost.event = &events[0], &events[1]
	if ok.request.(*pb.CompleteRequest).GetLeaseToken() != "t" || !ok.answer.(*pb.CompleteResponse).GetLate() || ok.unknown() {
		t.Errorf("a call that was answered is read as %+v", ok)
	}
	if lost.answer != nil || !lost.unknown() || lost.refusal.word() != "(Unavailable)" || lost.refusal.nothingDone() {
		t.Errorf("a call without an answer is read as %+v", lost)
	}
}

// TestJournalOfTheKilled: wherever a process is killed, what it had begun is on record, and
// its outcome is not known.
func TestJournalOfTheKilled(t *testing.T) {
	t.Parallel()
	text := journalOf(t, nil, nil)
	lines := bytes.SplitAfter(text, []byte("\n"))
	for n, want := range map[int]int{
		len(lines[0]) - 1:                 0, // the call was not made yet
		len(lines[0]):                     1,
		len(lines[0]) + len(lines[1]) - 1: 1,
		len(lines[0]) + len(lines[1]) + len(lines[2]) - 5: 1,
		len(text) - 1: 2,
	} {
		events, err := readJournal(bytes.NewReader(text[:n]), "worker")
		if err != nil || len(events) != want {
			t.Fatalf("cut at %d: %d events, want %d (%v)", n, len(events), want, err)
		}
		if want > 0 {
			last := events[want-1].items()[0]
			last.event = &events[want-1]
			if complete := n == len(lines[0])+len(lines[1])+len(lines[2])-5; last.unknown() == complete {
				t.Errorf("cut at %d: unknown %t", n, last.unknown())
			}
		}
	}
	if _, err := readJournal(strings.NewReader("{}x\n"), "worker"); err == nil {
		t.Error("a journal with a broken line was read")
	}
}

// TestRefusals: what a refusal says of what was done decides what is a violation.
func TestRefusals(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		method, reason             string
		undone, ambiguous, strange bool
	}{
		{"Complete", "", false, true, false},
		{"Complete", "OUTCOME_UNKNOWN", false, true, true}, // it may be repeated
		{"Enqueue", "OUTCOME_UNKNOWN", false, true, false},
		{"BatchEnqueue", "OUTCOME_UNKNOWN", false, true, false},
		{"Heartbeat", "DATABASE_UNAVAILABLE", true, false, false},
		{"Heartbeat", "LEASE_SUPERSEDED", false, false, false},
		{"Heartbeat", "RESULT_CONFLICT", false, false, true},
		{"Fail", "INTERNAL", false, true, true},
		{"Enqueue", "INVALID_REQUEST", false, false, true},
	} {
		r := &refusal{Reason: c.reason}
		if r.nothingDone() != c.undone || r.ambiguous() != c.ambiguous || r.strange(c.method) != c.strange {
			t.Errorf("%s refused with %q: nothing done %t, ambiguous %t, strange %t", c.method, c.reason, r.nothingDone(), r.ambiguous(), r.strange(c.method))
		}
	}
	var none *refusal
	if none.nothingDone() || none.ambiguous() || none.strange("Complete") || none.word() != "OK" {
		t.Error("no refusal is one")
	}
}

func TestLedgerFences(t *testing.T) {
	t.Parallel()
	l, err := openLedger()
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, c := range []struct {
		no   int64
		want error
	}{{1, nil}, {3, nil}, {3, nil}, {2, errFenced}} {
		if err := book(ctx, l.url, "7", c.no); !errors.Is(err, c.want) {
			t.Errorf("the effect of lease %d: %v, want %v", c.no, err, c.want)
		}
	}
	if err := book(ctx, l.url, "x", 1); err == nil {
		t.Error("an effect of no job was taken")
	}
}
