package privatepg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// pollInterval is the pace at which the states of processes are looked at:
// nobody announces them.
const pollInterval = 10 * time.Millisecond

// process is one run of a postmaster.
type process struct {
	pid  int
	done chan struct{}
	// err is how it ended, to be read after done.
	err error
}

// startProcess starts the command and waits for it in a goroutine of its own
// that keeps its OS thread: the kernel sends the death signal when the thread
// that started the child ends, and the runtime ends idle threads as it likes.
func startProcess(cmd *exec.Cmd) (*process, error) {
	p := &process{done: make(chan struct{})}
	started := make(chan error)
	go p.run(cmd, started)
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

func (p *process) run(cmd *exec.Cmd, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		started <- err
		return
	}
	p.pid = cmd.Process.Pid
	started <- nil
	p.err = cmd.Wait()
	close(p.done)
}

func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// wait returns whether the process ended before the context did.
func (p *process) wait(ctx context.Context) bool {
	select {
	case <-p.done:
		return true
	case <-ctx.Done():
		return false
	}
}

// signal sends to a process that may just have ended, which is no error.
func (p *process) signal(sig syscall.Signal) error {
	if !p.running() {
		return nil
	}
	return signalPID(p.pid, sig)
}

func signalPID(pid int, sig syscall.Signal) error {
	if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return os.NewSyscallError("kill", err)
	}
	return nil
}

// stopWith sends the signal and waits at most the patience for the end.
func (p *process) stopWith(ctx context.Context, sig syscall.Signal, patience time.Duration) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := p.signal(sig); err != nil {
		return false, err
	}
	return p.wait(ctx), nil
}

// destroy kills the postmaster and its children, which it lists first: they
// change their parent when it dies.
func (p *process) destroy() error {
	children, err := childrenOf(p.pid)
	if err != nil {
		return err
	}
	if err := p.signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.done
	for _, child := range children {
		if err := signalPID(child, syscall.SIGKILL); err != nil {
			return err
		}
	}
	// Until the last one is gone, no server starts on their data.
	for _, child := range children {
		if err := awaitState(child, gone); err != nil {
			return err
		}
	}
	return nil
}

const (
	// gone is the state of a process that ended, reaped or not.
	gone byte = 0
	// stopped is the state letter after SIGSTOP.
	stopped byte = 'T'
)

// awaitState waits until the process is in the state, or gone: the kernel
// delivers a signal when the process leaves a system call or is scheduled.
func awaitState(pid int, want byte) error {
	deadline := time.NewTimer(immediatePatience)
	defer deadline.Stop()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		state := stateOf(pid)
		if state == want || state == gone {
			return nil
		}
		select {
		case <-ticker.C:
		case <-deadline.C:
			return fmt.Errorf("process %d of the server did not obey a signal, its state is %c", pid, state)
		}
	}
}

// livePostmaster returns the process id of the postmaster that runs on the data
// directory, or 0. The id in postmaster.pid alone proves nothing: after a crash
// another process may have got it, and one that nobody reaps still takes signals.
func livePostmaster(pgdata string) int {
	pid := readPID(filepath.Join(pgdata, "postmaster.pid"))
	if pid == 0 || !isPostmasterOf(pid, pgdata) {
		return 0
	}
	return pid
}

// awaitNoPostmaster gives the server of a killed predecessor time to end, then
// fails with *InUseError.
func awaitNoPostmaster(ctx context.Context, pgdata string, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		pid := livePostmaster(pgdata)
		if pid == 0 {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return &InUseError{DataDir: filepath.Dir(pgdata), PID: pid}
		}
	}
}

// disownPIDFile makes a postmaster.pid of a crashed server harmless. PostgreSQL
// refuses to start while any process has the id in its first line, except its
// own parent, so our id goes there. The file must stay: its other lines let
// PostgreSQL find backends that outlived their postmaster.
func disownPIDFile(pgdata string) error {
	path := filepath.Join(pgdata, "postmaster.pid")
	pid := readPID(path)
	if pid == 0 || errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return nil
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	_, rest, _ := strings.Cut(string(content), "\n")
	return os.WriteFile(path, []byte(strconv.Itoa(os.Getpid())+"\n"+rest), 0o600)
}
