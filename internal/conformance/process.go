package conformance

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Environment variables that tell the worker what to do.
const (
	EnvAddress = "LEASEHOLD_ADDRESS"
	EnvQueue   = "LEASEHOLD_QUEUE"
	EnvSlots   = "LEASEHOLD_SLOTS"
)

const (
	// tailBytes bounds what is kept of what a worker says.
	tailBytes = 4 << 10
	// leftovers is how long output is still read after the worker has ended, where a process that
	// it started holds it open.
	leftovers = time.Second
)

// process is the worker under test.
type process struct {
	cmd   *exec.Cmd
	said  tail
	ended chan struct{}

	endedAt time.Time // written before ended is closed
}

// startProcess runs a command in a process group of its own, so that nothing that it starts is left
// behind.
func startProcess(command, env []string, out io.Writer) (*process, error) {
	p := &process{cmd: exec.Command(command[0], command[1:]...), ended: make(chan struct{})}
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, EnvAddress+"=") && !strings.HasPrefix(entry, EnvQueue+"=") && !strings.HasPrefix(entry, EnvSlots+"=") {
			p.cmd.Env = append(p.cmd.Env, entry)
		}
	}
	p.cmd.Env = append(p.cmd.Env, env...)
	w := io.MultiWriter(&p.said, out)
	p.cmd.Stdout, p.cmd.Stderr = w, w
	p.cmd.WaitDelay = leftovers
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // exit tells
		p.endedAt = time.Now()
	}()
	return p, nil
}

// terminate sends SIGTERM to the process alone, as container runtimes do.
func (p *process) terminate() { _ = p.cmd.Process.Signal(syscall.SIGTERM) } // it may have ended

// kill ends the process and all that it started.
func (p *process) kill() {
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // they may have ended
	<-p.ended
}

// exit says how the process ended.
func (p *process) exit() string {
	<-p.ended
	return p.cmd.ProcessState.String()
}

// tail keeps the end of what a process says.
type tail struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write is io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, err := t.text.Write(p)
	if over := t.text.Len() - tailBytes; over > 0 {
		t.text.Next(over)
	}
	return n, err
}

// String is what was kept so far.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}

// prefixed writes whole lines, each behind the name of its scene.
type prefixed struct {
	name string
	mu   *sync.Mutex // of the writer
	to   io.Writer
	rest []byte
}

// Write is io.Writer.
func (w *prefixed) Write(p []byte) (int, error) {
	w.rest = append(w.rest, p...)
	for {
		line, rest, whole := bytes.Cut(w.rest, []byte("\n"))
		if !whole && len(line) < tailBytes {
			return len(p), nil
		}
		w.mu.Lock()
		_, err := fmt.Fprintf(w.to, "%s: %s\n", w.name, line)
		w.mu.Unlock()
		if err != nil {
			return 0, err
		}
		w.rest = rest
	}
}
