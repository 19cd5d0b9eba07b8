package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

const (
	// startPatience bounds the start of a child, stopPatience its orderly end.
	startPatience = time.Minute
	stopPatience  = 15 * time.Second
	// readyPoll is how often the ready file of a child is looked for.
	readyPoll = 10 * time.Millisecond
	// logTail is how much of a child's log an error shows.
	logTail = 4 << 10
)

// child is a process of the binary under measurement. It tells its addresses by a ready file.
type child struct {
	cmd        *exec.Cmd
	dir        string
	ended      chan struct{}
	grpc, http string
}

// startChild starts the binary and waits until it is ready. What it logs goes into a file, as
// it does where a service is run; the environment has no settings but those given.
func startChild(ctx context.Context, binary string, args, settings []string) (*child, error) {
	dir, err := os.MkdirTemp("", "leasehold-bench-")
	if err != nil {
		return nil, err
	}
	c := &child{dir: dir, ended: make(chan struct{})}
	c.cmd = exec.Command(binary, append(args, "--ready-file", c.file("ready"))...)
	c.cmd.Env = append(environment(), settings...)
	c.cmd.SysProcAttr = childAttributes()
	if err := c.start(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	if err := c.awaitReady(ctx); err != nil {
		said := c.said()
		return nil, errors.Join(fmt.Errorf("%s: %w; it said:\n%s", args[0], err, said), c.stop())
	}
	return c, nil
}

func (c *child) file(name string) string { return filepath.Join(c.dir, name) }

func (c *child) start() error {
	log, err := os.Create(c.file("log"))
	if err != nil {
		return err
	}
	defer log.Close()
	c.cmd.Stdout, c.cmd.Stderr = log, log
	started := make(chan error)
	go func() {
		// The kernel sends the signal of a parent's death when the thread ends that started
		// the child, and the runtime ends idle threads as it likes.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := c.cmd.Start()
		started <- err
		if err == nil {
			_ = c.cmd.Wait() // the process state tells
			close(c.ended)
		}
	}()
	return <-started
}

func (c *child) awaitReady(ctx context.Context) error {
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for {
		if text, err := os.ReadFile(c.file("ready")); err == nil {
			c.readAddresses(string(text))
			return nil
		}
		select {
		case <-tick.C:
		case <-c.ended:
			return fmt.Errorf("the process ended with exit code %d before it was ready", c.cmd.ProcessState.ExitCode())
		case <-ctx.Done():
			return fmt.Errorf("the process is not ready: %w", ctx.Err())
		}
	}
}

func (c *child) readAddresses(text string) {
	for line := range strings.Lines(text) {
		name, address, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch name {
		case "grpc":
			c.grpc = address
		case "http":
			c.http = address
		}
	}
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// said is the end of the child's log.
func (c *child) said() string {
	log, err := os.Open(c.file("log"))
	if err != nil {
		return err.Error()
	}
	defer log.Close()
	if size, err := log.Seek(0, io.SeekEnd); err == nil {
		_, _ = log.Seek(max(0, size-logTail), io.SeekStart) // at worst too much is read
	}
	text, _ := io.ReadAll(log) // what is there is shown
	return string(text)
}

// stop ends the child, by force where it does not drain, and removes its files.
func (c *child) stop() error {
	_ = c.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	timer := time.NewTimer(stopPatience)
	defer timer.Stop()
	select {
	case <-c.ended:
	case <-timer.C:
		_ = c.cmd.Process.Kill() // it may have ended
		<-c.ended
	}
	return os.RemoveAll(c.dir)
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
