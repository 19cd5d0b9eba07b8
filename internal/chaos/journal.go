package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// entry is one line of a journal: a call before it is made, or what became of it.
type entry struct {
	Call    int64           `json:"call"` // its number in this journal
	At      time.Time       `json:"at"`
	Method  string          `json:"method,omitempty"` // before it
	Request json.RawMessage `json:"request,omitempty"`
	Answer  json.RawMessage `json:"answer,omitempty"` // after it
	Refusal *refusal        `json:"refusal,omitempty"`
}

// journal writes down the calls of one process.
type journal struct {
	mu   sync.Mutex
	file *os.File
	last int64
}

func openJournal(name string) (*journal, error) {
	file, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	return &journal{file: file}, nil
}

// intercept writes down a call before and after it is made. A line that cannot be written
// ends the process: a history with holes would accuse the service of what it did not do.
func (j *journal) intercept(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	call := j.begin(path.Base(method), req.(proto.Message))
	err := invoke(ctx, method, req, reply, conn, opts...)
	done := entry{Call: call, Refusal: refusalOf(err)}
	if err == nil && !isRead(path.Base(method)) {
		done.Answer = inJSON(reply.(proto.Message))
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.write(done)
	return err
}

func (j *journal) begin(method string, req proto.Message) int64 {
	request := inJSON(req)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.last++
	j.write(entry{Call: j.last, Method: method, Request: request})
	return j.last
}

func (j *journal) write(e entry) {
	e.At = time.Now()
	line, err := json.Marshal(e)
	if err == nil {
		_, err = j.file.Write(append(line, '\n'))
	}
	if err != nil {
		panic(fmt.Sprintf("the journal cannot be written: %v", err))
	}
}

func inJSON(m proto.Message) json.RawMessage {
	text, err := protojson.Marshal(m)
	if err != nil {
		panic(err) // of generated messages that gRPC could send, none fails
	}
	return text
}

// event is one call of one process, as its journal has it.
type event struct {
	process    string
	start, end time.Time // end is zero where the process did not live to see the answer
	method     string
	request    proto.Message
	answer     proto.Message // nil where there was none, or the call only reads
	refusal    *refusal
}

// methods are those whose calls are on record, with their messages.
var methods = map[string]func() (request, answer proto.Message){
	"AcquireLease":   func() (_, _ proto.Message) { return &pb.AcquireLeaseRequest{}, &pb.AcquireLeaseResponse{} },
	"Heartbeat":      func() (_, _ proto.Message) { return &pb.HeartbeatRequest{}, &pb.HeartbeatResponse{} },
	"Complete":       func() (_, _ proto.Message) { return &pb.CompleteRequest{}, &pb.CompleteResponse{} },
	"Fail":           func() (_, _ proto.Message) { return &pb.FailRequest{}, &pb.FailResponse{} },
	"Release":        func() (_, _ proto.Message) { return &pb.ReleaseRequest{}, &pb.ReleaseResponse{} },
	"BatchHeartbeat": func() (_, _ proto.Message) { return &pb.BatchHeartbeatRequest{}, &pb.BatchHeartbeatResponse{} },
	"BatchComplete":  func() (_, _ proto.Message) { return &pb.BatchCompleteRequest{}, &pb.BatchCompleteResponse{} },
	"BatchFail":      func() (_, _ proto.Message) { return &pb.BatchFailRequest{}, &pb.BatchFailResponse{} },
	"BatchRelease":   func() (_, _ proto.Message) { return &pb.BatchReleaseRequest{}, &pb.BatchReleaseResponse{} },
	"Enqueue":        func() (_, _ proto.Message) { return &pb.EnqueueRequest{}, &pb.EnqueueResponse{} },
	"BatchEnqueue":   func() (_, _ proto.Message) { return &pb.BatchEnqueueRequest{}, &pb.BatchEnqueueResponse{} },
	"CancelJob":      func() (_, _ proto.Message) { return &pb.CancelJobRequest{}, &pb.CancelJobResponse{} },
	"RetryJobs":      func() (_, _ proto.Message) { return &pb.RetryJobsRequest{}, &pb.RetryJobsResponse{} },
	"ResolveJob":     func() (_, _ proto.Message) { return &pb.ResolveJobRequest{}, &pb.ResolveJobResponse{} },
	"PauseQueue":     func() (_, _ proto.Message) { return &pb.PauseQueueRequest{}, &pb.PauseQueueResponse{} },
	"ResumeQueue":    func() (_, _ proto.Message) { return &pb.ResumeQueueRequest{}, &pb.ResumeQueueResponse{} },
	"ListJobs":       func() (_, _ proto.Message) { return &pb.ListJobsRequest{}, nil },
	"ListStuck":      func() (_, _ proto.Message) { return &pb.ListStuckRequest{}, nil },
	"GetJob":         func() (_, _ proto.Message) { return &pb.GetJobRequest{}, nil },
	"CreateQueue":    func() (_, _ proto.Message) { return &pb.CreateQueueRequest{}, nil },
}

// isRead tells calls that change no job: their answers are long and prove nothing.
func isRead(method string) bool {
	make, ok := methods[method]
	if !ok {
		panic("calls of " + method + " have no place in a journal")
	}
	_, answer := make()
	return answer == nil
}

// readJournals reads every journal in a folder.
func readJournals(dir string) ([]event, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*"+journalSuffix))
	if err != nil {
		return nil, err
	}
	var all []event
	for _, name := range names {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		events, err := readJournal(file, strings.TrimSuffix(filepath.Base(name), journalSuffix))
		file.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, events...)
	}
	return all, nil
}

const journalSuffix = ".jsonl"

// readJournal reads one journal. A line that does not end was being written when its process
// was killed: one before a call, which was not made then, or one after it.
func readJournal(from io.Reader, process string) ([]event, error) {
	var events []event
	open := map[int64]int{}
	for lines := bufio.NewReaderSize(from, 1<<20); ; {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return events, nil
		}
		if err != nil {
			return nil, err
		}
		var e entry
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("%w in %q", err, line)
		}
		if e.Method != "" {
			open[e.Call] = len(events)
			ev := event{process: process, start: e.At, method: e.Method}
			if err := ev.readRequest(e.Request); err != nil {
				return nil, err
			}
			events = append(events, ev)
			continue
		}
		if err := events[open[e.Call]].readAnswer(e); err != nil {
			return nil, err
		}
	}
}

func (ev *event) readRequest(text []byte) error {
	make, ok := methods[ev.method]
	if !ok {
		return fmt.Errorf("a call of %q", ev.method)
	}
	ev.request, _ = make()
	return protojson.Unmarshal(text, ev.request)
}

func (ev *event) readAnswer(e entry) error {
	ev.end, ev.refusal = e.At, e.Refusal
	if e.Answer == nil {
		return nil
	}
	_, ev.answer = methods[ev.method]()
	return protojson.Unmarshal(e.Answer, ev.answer)
}
