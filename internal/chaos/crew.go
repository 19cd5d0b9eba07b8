package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// post is the place of a worker or a producer, with the process that holds it now.
type post struct {
	crew *crew
	role string
	name string

	mu      sync.Mutex
	life    int // how many processes have held it
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	ended   chan struct{}
	wanted  bool
	stderr  string // a file
	watcher sync.WaitGroup
}

// crew is all workers and producers.
type crew struct {
	posts []*post
	seed  uint64
	rate  float64
	self  string
	dir   string // of journals
	// replicas and ledger are where they turn to.
	replicas []string
	ledger   string
	failed   func(error)
}

// hire starts the workers, then the producers.
func (c *crew) hire(workers, producers int) error {
	var err error
	if c.self, err = os.Executable(); err != nil {
		return err
	}
	for i := range workers {
		c.posts = append(c.posts, &post{crew: c, role: roleWorker, name: fmt.Sprintf("worker-%02d", i)})
	}
	for i := range producers {
		c.posts = append(c.posts, &post{crew: c, role: roleProducer, name: fmt.Sprintf("producer-%d", i)})
	}
	for _, p := range c.posts {
		if err := p.start(); err != nil {
			return err
		}
	}
	return nil
}

// start gives the post to a new process, which has a name and a chance of its own.
func (p *post) start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.life++
	name := fmt.Sprintf("%s.%d", p.name, p.life)
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, p.crew.seed, name) // it never fails
	p.stderr = filepath.Join(p.crew.dir, name+".err")
	said, err := os.Create(p.stderr)
	if err != nil {
		return err
	}
	defer said.Close()
	cmd := exec.Command(p.crew.self, p.role, "-name", name, "-seed", fmt.Sprint(h.Sum64()), "-rate", fmt.Sprint(p.crew.rate),
		"-ledger", p.crew.ledger, "-replicas", strings.Join(p.crew.replicas, ","), "-journal", filepath.Join(p.crew.dir, name+journalSuffix))
	cmd.Stderr = said
	// A group of its own: Ctrl-C is for the parent. And the kernel wakes a process that is
	// stopped when its parent dies, with a hangup, if it is alone in its group.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if p.stdin, err = cmd.StdinPipe(); err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	p.cmd, p.ended, p.wanted = cmd, ended, true
	p.watcher.Go(func() { p.await(cmd, ended, name) })
	return nil
}

// await waits for the end of a process, and tells where nobody wanted it.
func (p *post) await(cmd *exec.Cmd, ended chan struct{}, name string) {
	err := cmd.Wait()
	close(ended)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.wanted && p.ended == ended {
		said, _ := os.ReadFile(p.stderr) // to say more than that it ended
		p.crew.failed(fmt.Errorf("%s ended by itself (%w); it said:\n%s", name, errors.Join(err), lastLines(string(said), 30)))
	}
}

// kill ends the process as a crash does.
func (p *post) kill() {
	p.mu.Lock()
	p.wanted = false
	ended := p.ended
	p.mu.Unlock()
	p.signal(syscall.SIGKILL)
	<-ended
}

func (p *post) signal(s syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.cmd.Process.Signal(s) // it may have ended
}

// tell says a word to a process.
func (p *post) tell(word string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = fmt.Fprintln(p.stdin, word) // it may have ended, which await tells
}

// dismiss lets those of a role stop, and waits for them.
func (c *crew) dismiss(ctx context.Context, role string) error {
	var leaving []*post
	for _, p := range c.posts {
		if p.role == role {
			leaving = append(leaving, p)
			p.mu.Lock()
			p.wanted = false
			p.stdin.Close()
			p.mu.Unlock()
		}
	}
	ctx, cancel := context.WithTimeout(ctx, workTime+stopPatience)
	defer cancel()
	for _, p := range leaving {
		select {
		case <-p.ended:
		case <-ctx.Done():
			return fmt.Errorf("%s does not stop: %w", p.name, ctx.Err())
		}
	}
	return nil
}

// calm lets the workers work without mishaps of their own.
func (c *crew) calm() {
	for _, p := range c.posts {
		p.tell(wordCalm)
	}
}

// close ends whoever is left.
func (c *crew) close() {
	for _, p := range c.posts {
		if p.cmd != nil {
			p.kill()
			p.watcher.Wait()
		}
	}
}

// lastLines is the end of what a process said.
func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return strings.Join(lines, "\n")
}

// restTime is what a lease needs, at most, to be ended after its worker is gone: its time, the
// grace after an outage, and two sweeps.
const restTime = leaseMost + 5*time.Second + 2*watcherInterval
