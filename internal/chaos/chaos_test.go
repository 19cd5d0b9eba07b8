package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
)

// TestMain lets the test binary be the workers and the producers: they are processes of the
// program that runs the whole.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == roleWorker || os.Args[1] == roleProducer) {
		os.Exit(run(context.Background(), os.Args[1:], os.Stdout))
	}
	os.Exit(pgtest.Run(m))
}

// TestChaosSeconds is the whole program, for seconds and with fewer processes: it passes, says
// so in its last line, and judged on the same evidence with one lie in it, it fails.
func TestChaosSeconds(t *testing.T) {
	var out bytes.Buffer
	cfg := config{
		duration: 12 * time.Second, seed: 1, replicas: 3, workers: 8, producers: 2,
		rate: 30, pause: 600 * time.Millisecond, judging: 15 * time.Second,
	}
	p := &performance{cfg: cfg, out: &out, began: time.Now()}
	e, v, err := p.run(t.Context())
	if err != nil {
		p.failed(err)
	}
	code := p.conclude(t.Context(), e, v)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if last := lines[len(lines)-1]; code != 0 || !strings.HasPrefix(last, "chaos: PASS seed=1 ") {
		t.Fatalf("exit code %d:\n%s", code, out.String())
	}
	if len(e.Tables) < 20 || len(e.Records) < 20 {
		t.Fatalf("it proves nothing: %d jobs, %d leases\n%s", len(e.Tables), len(e.Records), out.String())
	}
	if _, err := os.Stat(p.dir); !os.IsNotExist(err) {
		t.Errorf("%s is left after a PASS (%v)", p.dir, err)
	}
	for name, l := range lies {
		t.Run(name, func(t *testing.T) {
			told := e.copied()
			l.tell(t, told)
			found := judge(told, cfg.judging).violations
			if !strings.Contains(strings.Join(found, "\n"), l.found) {
				t.Errorf("want a violation with %q, got %q", l.found, found)
			}
		})
	}
}

// TestInterrupted: whoever stops a run early gets no verdict, and nothing is left.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out bytes.Buffer
	p := &performance{cfg: config{duration: time.Hour, seed: 1, replicas: 1, workers: 1, producers: 1, rate: 1, pause: time.Second}, out: &out, began: time.Now()}
	e, v, err := p.run(ctx)
	if err == nil || v != nil {
		t.Errorf("a run that was over before it began ends with %v, %v", v, err)
	}
	if code := p.conclude(ctx, e, v); code != 1 || !strings.Contains(out.String(), "chaos: INTERRUPTED seed=1 ") {
		t.Errorf("exit code %d:\n%s", code, out.String())
	}
	if _, err := os.Stat(p.dir); !os.IsNotExist(err) {
		t.Errorf("%s is left (%v)", p.dir, err)
	}
}

func TestCommandLine(t *testing.T) {
	for _, c := range []struct {
		args string
		code int
	}{
		{"-h", 0}, {"-duration 0s", 2}, {"-seed x", 2}, {"-nonsense", 2}, {"more", 2}, {"-judge /nonexistent", 1},
	} {
		if code := run(t.Context(), strings.Fields(c.args), &bytes.Buffer{}); code != c.code {
			t.Errorf("chaos %s: exit code %d, want %d", c.args, code, c.code)
		}
	}
}
