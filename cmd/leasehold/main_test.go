package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
	"github.com/leasehold/leasehold/internal/replica"
)

// patience bounds every wait of these tests, on a busy machine.
const patience = time.Minute

// binary is the command under test, built once: signals and exit codes need a process.
var binary string

// buildFlags are those that it is built with.
var buildFlags []string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "leasehold-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binary = filepath.Join(dir, "leasehold")
	build := exec.Command("go", append(append([]string{"build"}, buildFlags...), "-o", binary, ".")...)
	if said, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building the command: %v\n%s", err, said)
		os.Exit(1)
	}
	code := pgtest.Run(m)
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// process is a running leasehold.
type process struct {
	cmd      *exec.Cmd
	out, err replica.Said
	ended    chan struct{}
	ready    string // path of its ready file
}

// begin starts a command line. A process that still runs when the test ends is killed.
func begin(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(binary, args...), ended: make(chan struct{})}
	p.cmd.Env = append(cleanEnv(), env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.err
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // the exit code says it
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // most have ended
		<-p.ended
		if t.Failed() {
			t.Logf("leasehold %s said:\n%s%s", strings.Join(args, " "), &p.out, &p.err)
		}
	})
	return p
}

// beginService starts serve or dev on free ports, with a ready file.
func beginService(t *testing.T, args ...string) *process {
	t.Helper()
	return beginServiceIn(t, nil, args...)
}

// beginServiceIn is beginService with more in the environment.
func beginServiceIn(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	ready := filepath.Join(t.TempDir(), "ready")
	p := begin(t, env, append(args, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--ready-file", ready)...)
	p.ready = ready
	return p
}

// cleanEnv is this process's environment without settings of ours.
func cleanEnv() []string {
	var env []string
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, envPrefix) || strings.HasPrefix(entry, "LEASEHOLD_PG_BIN=") {
			env = append(env, entry)
		}
	}
	return env
}

// addresses waits for the ready file and reads it.
func (p *process) addresses(t *testing.T) (grpcAddress, httpAddress string) {
	t.Helper()
	var text []byte
	eventually(t, "the ready file", func() bool {
		p.mustRun(t)
		var err error
		text, err = os.ReadFile(p.ready)
		return err == nil
	})
	lines := strings.Split(string(text), "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[0], "grpc=") || !strings.HasPrefix(lines[1], "http=") || lines[2] != "" {
		t.Fatalf("the ready file is %q", text)
	}
	return strings.TrimPrefix(lines[0], "grpc="), strings.TrimPrefix(lines[1], "http=")
}

func (p *process) mustRun(t *testing.T) {
	t.Helper()
	select {
	case <-p.ended:
		t.Fatalf("it ended with code %d", p.cmd.ProcessState.ExitCode())
	default:
	}
}

// says waits until standard error has a text.
func (p *process) says(t *testing.T, text string) {
	t.Helper()
	eventually(t, "log with "+text, func() bool { return strings.Contains(p.err.String(), text) })
}

func (p *process) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// exit waits for the end and returns the exit code.
func (p *process) exit(t *testing.T) int {
	t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-p.ended:
		return p.cmd.ProcessState.ExitCode()
	case <-timer.C:
		t.Fatal("it does not end")
		return 0
	}
}

func (p *process) mustExit(t *testing.T, want int) {
	t.Helper()
	if got := p.exit(t); got != want {
		t.Errorf("exit code %d, want %d", got, want)
	}
}

// eventually polls a condition that another process brings about.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("never came about: %s", what)
		}
	}
}

// get reads an HTTP page; status 0 where nobody answers.
func get(t *testing.T, url string) (status int, body string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return 0, ""
	}
	defer resp.Body.Close()
	var text bytes.Buffer
	if _, err := text.ReadFrom(resp.Body); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, text.String()
}

func dial(t *testing.T, target string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// runIn runs a command line in this process: what needs no signals.
func runIn(t *testing.T, env map[string]string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	ctx, cancel := context.WithTimeoutCause(t.Context(), patience, errors.New("the command does not end"))
	defer cancel()
	code = run(ctx, args, streams{out: &out, err: &err}, func(name string) (string, bool) {
		value, set := env[name]
		return value, set
	})
	return code, out.String(), err.String()
}
