// Package replica runs the service as processes of its own, as it runs where it is used:
// tests start several over one database, kill them, stop them in the middle of anything and
// let them go on. It needs Go's compiler, which makes the binary once.
package replica

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	program = "github.com/leasehold/leasehold/cmd/leasehold"
	// readyPoll is how often the ready file is looked for.
	readyPoll = 20 * time.Millisecond
	// logBytes bounds what is kept of what a replica says: its end is what explains a failure.
	logBytes = 1 << 20
)

// Build makes the service's binary in dir and returns its path. Flags are those of go build,
// as "-race".
func Build(ctx context.Context, dir string, flags ...string) (string, error) {
	binary := filepath.Join(dir, "leasehold")
	build := exec.CommandContext(ctx, "go", append(append([]string{"build"}, flags...), "-o", binary, program)...)
	if said, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, said)
	}
	return binary, nil
}

// Config says how a replica is started. Binary, DatabaseURL and Dir are required.
type Config struct {
	Binary      string
	DatabaseURL string
	// Dir is a folder for the ready file, one for each replica.
	Dir string
	// Args are further arguments of serve.
	Args []string
	// Env is added to the environment, from which settings of the service's own are taken out.
	Env []string
	// Wrap is a command that is put before the binary, as faketime is. Default: none.
	Wrap []string
}

// Replica is one process of the service. Its methods may be called by several goroutines at
// once, but not Start beside others.
type Replica struct {
	cfg        Config
	grpc, http string // kept over restarts
	said       Said

	mu    sync.Mutex
	cmd   *exec.Cmd
	ended chan struct{}
}

// Start starts `leasehold serve` on free ports of 127.0.0.1 and waits until it is ready or
// ctx ends.
func Start(ctx context.Context, cfg Config) (*Replica, error) {
	r := &Replica{cfg: cfg, grpc: "127.0.0.1:0", http: "127.0.0.1:0"}
	if err := r.Start(ctx); err != nil {
		return nil, err
	}
	return r, nil
}

// Start starts a replica again that has ended, at the addresses that it had. Meanwhile a connection
// of somebody else may have one of them for its own end: then it tries again.
func (r *Replica) Start(ctx context.Context) error {
	for tries := 1; ; tries++ {
		if err := r.Begin(); err != nil {
			return err
		}
		err := r.AwaitReady(ctx)
		if err == nil {
			return nil
		}
		r.Kill()
		if tries == mostStarts || ctx.Err() != nil || !strings.Contains(r.Log(), "address already in use") {
			return fmt.Errorf("%w; it said:\n%s", err, r.Log())
		}
		select {
		case <-time.After(startPause):
		case <-ctx.Done():
		}
	}
}

const (
	mostStarts = 20
	startPause = 500 * time.Millisecond
)

// Use makes the next Start one of another binary, as an upgrade does.
func (r *Replica) Use(binary string) { r.cfg.Binary = binary }

// Begin is Start without waiting: as where the database is away.
func (r *Replica) Begin() error {
	if err := os.Remove(r.readyFile()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	args := append([]string{}, r.cfg.Wrap...)
	args = append(args, r.cfg.Binary, "serve", "--database-url", r.cfg.DatabaseURL,
		"--listen", r.grpc, "--http", r.http, "--ready-file", r.readyFile())
	args = append(args, r.cfg.Args...)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(environment(), r.cfg.Env...)
	cmd.Stdout, cmd.Stderr = &r.said, &r.said
	// A group of its own: a Ctrl-C at the terminal is for the test, which ends its replicas.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	r.mu.Lock()
	r.cmd, r.ended = cmd, ended
	r.mu.Unlock()
	go func() {
		_ = cmd.Wait() // ExitCode tells
		close(ended)
	}()
	return nil
}

// AwaitReady waits for the ready file, which has the addresses.
func (r *Replica) AwaitReady(ctx context.Context) error {
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for {
		if text, err := os.ReadFile(r.readyFile()); err == nil {
			return r.readAddresses(string(text))
		}
		select {
		case <-tick.C:
		case <-r.Ended():
			return fmt.Errorf("the replica ended with exit code %d before it was ready", r.ExitCode())
		case <-ctx.Done():
			return fmt.Errorf("the replica is not ready: %w", context.Cause(ctx))
		}
	}
}

func (r *Replica) readAddresses(text string) error {
	for line := range strings.Lines(text) {
		name, address, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch name {
		case "grpc":
			r.grpc = address
		case "http":
			r.http = address
		}
	}
	if strings.HasSuffix(r.grpc, ":0") || strings.HasSuffix(r.http, ":0") {
		return fmt.Errorf("the ready file has no addresses: %q", text)
	}
	return nil
}

func (r *Replica) readyFile() string { return filepath.Join(r.cfg.Dir, "ready") }

// GRPC is the address of the gRPC port, which stays over restarts.
func (r *Replica) GRPC() string { return r.grpc }

// HTTP is the address of the port for health and metrics.
func (r *Replica) HTTP() string { return r.http }

// Log is the end of what the replica has said, over restarts.
func (r *Replica) Log() string { return r.said.String() }

// Ended is closed when the process has ended.
func (r *Replica) Ended() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended
}

// ExitCode is that of a process that has ended; -1 after a kill.
func (r *Replica) ExitCode() int {
	<-r.Ended()
	return r.cmd.ProcessState.ExitCode()
}

// PID is the process's number.
func (r *Replica) PID() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cmd.Process.Pid
}

// Kill ends the process as a crash does, and waits for its end.
func (r *Replica) Kill() {
	r.signal(syscall.SIGKILL)
	<-r.Ended()
}

// Freeze stops the process where it is; what it is sent waits in the sockets.
func (r *Replica) Freeze() { r.signal(syscall.SIGSTOP) }

// Thaw lets a frozen process go on.
func (r *Replica) Thaw() { r.signal(syscall.SIGCONT) }

// Terminate asks the process to drain and end, without waiting.
func (r *Replica) Terminate() { r.signal(syscall.SIGTERM) }

// Stop asks the process to drain and waits for its end; one that does not end in ctx is
// killed. An exit code other than 0 is an error.
func (r *Replica) Stop(ctx context.Context) error {
	r.Thaw()
	r.Terminate()
	select {
	case <-r.Ended():
	case <-ctx.Done():
		r.Kill()
		return fmt.Errorf("the replica did not drain: %w; it said:\n%s", context.Cause(ctx), r.Log())
	}
	if code := r.ExitCode(); code != 0 {
		return fmt.Errorf("the replica ended with exit code %d; it said:\n%s", code, r.Log())
	}
	return nil
}

func (r *Replica) signal(s syscall.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = r.cmd.Process.Signal(s) // it may have ended
}

// environment is that of this process without settings of the service.
func environment() []string {
	var env []string
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "LEASEHOLD_") {
			env = append(env, entry)
		}
	}
	return env
}

// Said keeps the end of what a process says, and may be read while it speaks.
type Said struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write is io.Writer.
func (t *Said) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, err := t.text.Write(p)
	if over := t.text.Len() - logBytes; over > 0 {
		t.text.Next(over)
	}
	return n, err
}

// String is what was kept so far.
func (t *Said) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}
