package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

func TestDevKeepsItsData(t *testing.T) {
	t.Parallel()
	// PostgreSQL runs under another account where this is root.
	dir, err := os.MkdirTemp("", "leasehold-dev-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(dir, "data")
	var id string
	for _, created := range []bool{true, false} {
		p := beginService(t, "dev", "--data-dir", data)
		grpcAddress, _ := p.addresses(t)
		key := "k"
		resp, err := pb.NewJobServiceClient(dial(t, grpcAddress)).Enqueue(t.Context(), &pb.EnqueueRequest{Queue: "never-created", IdempotencyKey: &key})
		if err != nil || resp.GetCreated() != created {
			t.Fatalf("enqueue: %v, %v", resp, err)
		}
		if !created && resp.GetJobId() != id {
			t.Errorf("the job is %s, was %s", resp.GetJobId(), id)
		}
		id = resp.GetJobId()
		p.signal(t, syscall.SIGINT)
		p.mustExit(t, exitDone)
	}
}

func TestDevOnTheSameDataTwice(t *testing.T) {
	t.Parallel()
	p := beginService(t, "dev", "--ephemeral")
	p.addresses(t)
	folder := filepath.Dir(postmasterFile(t, p))
	second := beginService(t, "dev", "--data-dir", folder)
	second.mustExit(t, exitFailed)
	if !strings.Contains(second.err.String(), folder) {
		t.Errorf("it does not say which folder:\n%s", &second.err)
	}
}

// postmasterFile finds the file that tells the process of the private PostgreSQL.
func postmasterFile(t *testing.T, p *process) string {
	t.Helper()
	found := regexp.MustCompile(`data_dir="?([^"\s]+)`).FindStringSubmatch(p.err.String())
	if found == nil {
		t.Fatal("the log does not tell the data directory")
	}
	return filepath.Join(found[1], "postmaster.pid")
}

func TestDevEndsWithItsPostgreSQL(t *testing.T) {
	t.Parallel()
	p := beginService(t, "dev", "--ephemeral", "--drain-timeout", "1s")
	p.addresses(t)
	text, err := os.ReadFile(postmasterFile(t, p))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.SplitN(string(text), "\n", 2)[0])
	if err != nil || pid < 2 {
		t.Fatalf("%q: %v", text, err)
	}
	if err := syscall.Kill(pid, syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	p.mustExit(t, exitFailed)
	if !strings.Contains(p.err.String(), "the private PostgreSQL has ended") {
		t.Errorf("it does not say why:\n%s", &p.err)
	}
}

func TestTourIsPrinted(t *testing.T) {
	t.Parallel()
	p := beginService(t, "dev", "--ephemeral")
	grpcAddress, httpAddress := p.addresses(t)
	eventually(t, "the tour", func() bool { return strings.Contains(p.out.String(), "JobService/GetJob") })
	text := p.out.String()
	if !strings.Contains(text, httpAddress) {
		t.Errorf("the tour does not tell %s:\n%s", httpAddress, text)
	}
	lines := tourLines(text)
	if len(lines) != 5 {
		t.Fatalf("%d lines:\n%s", len(lines), text)
	}
	for _, line := range lines {
		if !strings.Contains(line, " "+grpcAddress+" leasehold.v1.") {
			t.Errorf("not to the actual address: %s", line)
		}
	}
}

// tourLines are the lines of a tour that are to be pasted.
func tourLines(text string) []string {
	var lines []string
	for _, line := range strings.Split(text, "\n") {
		if strings.Contains(line, " -d '") {
			lines = append(lines, line)
		}
	}
	return lines
}

func TestTour(t *testing.T) {
	t.Parallel()
	missing := func(string) (string, error) { return "", errors.New("none") }
	at := func(path string) func(string) (string, error) {
		return func(string) (string, error) { return path, nil }
	}
	for _, c := range []struct {
		address string
		look    func(string) (string, error)
		call    string
		missing bool
	}{
		{"127.0.0.1:7070", at("/usr/local/bin/grpcurl"), "grpcurl -plaintext -d", false},
		{"127.0.0.1:7070", at("/opt/tools/grpcurl"), "/opt/tools/grpcurl -plaintext -d", false},
		{"127.0.0.1:7070", missing, "grpcurl -plaintext -d", true},
		{"unix:/run/l.sock", at("/usr/bin/grpcurl"), "grpcurl -plaintext -unix -d", false},
	} {
		var text strings.Builder
		if err := tourTemplate.Execute(&text, newTour(c.address, ":1", c.look)); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(text.String(), "go install"); got != c.missing {
			t.Errorf("%v: the way to get grpcurl is told: %v", c, got)
		}
		for _, line := range tourLines(text.String()) {
			if !strings.HasPrefix(strings.TrimPrefix(line, "LEASE=$("), c.call) {
				t.Errorf("want %s: %s", c.call, line)
			}
		}
	}
}

// TestTourIsJSON: a slip in the quotes would only show to who pastes the line.
func TestTourIsJSON(t *testing.T) {
	t.Parallel()
	for _, line := range tourLines(tourText) {
		_, data, _ := strings.Cut(line, "-d '")
		data, _, found := strings.Cut(data, "' {{.To}}")
		if !found {
			t.Errorf("no request in %s", line)
		}
		data = regexp.MustCompile(`'\$(TOKEN|JOB)'`).ReplaceAllString(data, "x")
		if strings.Contains(data, "'") || !json.Valid([]byte(data)) {
			t.Errorf("no JSON, or a quote too many: %s", data)
		}
	}
}
