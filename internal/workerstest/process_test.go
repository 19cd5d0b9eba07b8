//go:build workers

package workerstest

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold/leasehold/internal/conformance"
	"github.com/leasehold/leasehold/internal/doctest"
	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
	"github.com/leasehold/leasehold/internal/replica"
)

// language is a worker of examples.
type language struct {
	name  string
	slots int // most leases that it holds; 0 for any number
	// slow: its first calls take seconds on a busy machine, as those of a virtual machine that is not
	// warm do. Its leases in tests are longer by that factor.
	slow time.Duration
}

// lease is a short one that the worker can keep.
func (l language) lease() time.Duration { return shortLease * max(l.slow, 1) }

// languages are those of WORKERS, all without it.
var languages = slices.DeleteFunc([]language{
	{name: "go"},
	{name: "python"},
	{name: "node"},
	{name: "java", slow: 4},
	{name: "shell", slots: 1},
}, func(l language) bool {
	wanted := strings.Fields(os.Getenv("WORKERS"))
	return len(wanted) > 0 && !slices.Contains(wanted, l.name)
})

// binaries are the programs in Go, built by the first test that needs them.
var binaries struct {
	once            sync.Once
	dir             string
	service, worker string
	err             error
}

func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "3"); err != nil {
		panic(err)
	}
	flag.Parse() // what the command line says comes second, and stays
	code := pgtest.Run(m)
	if err := os.RemoveAll(binaries.dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

func build(t *testing.T) {
	t.Helper()
	b := &binaries
	b.once.Do(func() {
		if b.dir, b.err = os.MkdirTemp("", "leasehold-workers-"); b.err != nil {
			return
		}
		if b.service, b.err = replica.Build(context.Background(), b.dir); b.err != nil {
			return
		}
		b.worker = filepath.Join(b.dir, "worker")
		cmd := exec.Command("go", "build", "-o", b.worker, "./examples/go")
		cmd.Dir = doctest.Root(t)
		if said, err := cmd.CombinedOutput(); err != nil {
			b.err = fmt.Errorf("%w\n%s", err, said)
		}
	})
	if b.err != nil {
		t.Fatal(b.err)
	}
}

// command runs the worker of a language.
func (l language) command(t *testing.T) string {
	t.Helper()
	if l.name == "go" {
		build(t)
		return binaries.worker
	}
	return filepath.Join(doctest.Root(t), "examples", l.name, "run.sh")
}

// process is a worker process.
type process struct {
	t     *testing.T
	name  string
	cmd   *exec.Cmd
	said  replica.Said
	ended chan struct{}
}

// start runs a command as a worker, which ends with the test, and all that it has started too.
func start(t *testing.T, name string, command []string, address, queue string, slots int) *process {
	t.Helper()
	p := &process{t: t, name: name, cmd: exec.Command(command[0], command[1:]...), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), conformance.EnvAddress+"="+address, conformance.EnvQueue+"="+queue, conformance.EnvSlots+"="+strconv.Itoa(slots))
	p.cmd.Stdout, p.cmd.Stderr = &p.said, &p.said
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.WaitDelay = leftovers
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // what it did is on record with the service
		close(p.ended)
	}()
	t.Cleanup(func() {
		p.signalAll(syscall.SIGKILL)
		await(t, "the end of "+p.String(), p.ended)
		if t.Failed() {
			t.Logf("%s said:\n%s", p, p.said.String())
		}
	})
	return p
}

func (p *process) String() string { return fmt.Sprintf("%s worker %d", p.name, p.cmd.Process.Pid) }

// signal is for the process alone, as container runtimes do it.
func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) } // it may have ended

// signalAll is for all that it has started too: a machine that freezes does not ask.
func (p *process) signalAll(s syscall.Signal) { _ = syscall.Kill(-p.cmd.Process.Pid, s) }

// freeze stops the process with all that it has started, and returns when no thread of it runs any
// more: the signal alone is only a request, which a busy machine is slow to follow.
func (p *process) freeze() {
	p.signalAll(syscall.SIGSTOP)
	if !within(p.still) {
		p.t.Errorf("%s does not stand still", p) // other goroutines than the test's come here too
	}
}

func (p *process) still() bool {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.cmd.Process.Pid))
	if err != nil || len(threads) == 0 {
		return false
	}
	return !slices.ContainsFunc(threads, func(path string) bool {
		stat, err := os.ReadFile(path)
		at := bytes.LastIndex(stat, []byte(") ")) // behind the name of the program
		return err == nil && (at < 0 || stat[at+2] != 'T')
	})
}

// thaw lets it go on.
func (p *process) thaw() { p.signalAll(syscall.SIGCONT) }

// kill is kill -9, as a crash.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	await(p.t, "the end of "+p.String(), p.ended)
}

// drain is SIGTERM, and waits for the end.
func (p *process) drain() {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	await(p.t, "the end of "+p.String()+" after SIGTERM", p.ended)
}
