package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// crew is how many workers there are.
const crew = 3

// workerProcess is one worker.
type workerProcess struct {
	owner string
	cmd   *exec.Cmd
	stdin interface{ Close() error }
}

// play is what happens on the stage: the workers, what they tell, and what is done to them.
type play struct {
	svc     *service
	bank    *bank
	out     *narrator
	cast    []scenario
	jobs    map[string]string // by payment: its job
	workers map[string]*workerProcess
	events  chan event
	readers sync.WaitGroup

	killed, stopped string          // the workers it happened to
	resumed         bool            // the stopped one goes on
	expired         map[string]bool // by payment: the lease of its silent worker has run out
	settled         map[string]event
	takenOver       map[string]event // by payment: the lease that took over at a stage
	refused         map[string]event // by call: refusals of the stopped worker
}

// newPlay sets up the queues and starts the workers. The queues come first: the service would
// make one that a worker asks for, with defaults.
func newPlay(ctx context.Context, svc *service, b *bank, out *narrator) (*play, error) {
	p := &play{
		svc: svc, bank: b, out: out, cast: scenarios(),
		jobs: map[string]string{}, workers: map[string]*workerProcess{}, events: make(chan event, 100),
		expired: map[string]bool{}, settled: map[string]event{}, takenOver: map[string]event{}, refused: map[string]event{},
	}
	for _, q := range queues() {
		if _, err := svc.queues.CreateQueue(ctx, &pb.CreateQueueRequest{Queue: q}); err != nil {
			return nil, err
		}
	}
	for i := 1; i <= crew; i++ {
		if err := p.hire(fmt.Sprintf("worker-%d", i)); err != nil {
			p.end()
			return nil, err
		}
	}
	return p, nil
}

// hire starts a worker process.
func (p *play) hire(owner string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, "worker", "--service", p.svc.grpc, "--bank", p.bank.url, "--owner", owner)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	p.workers[owner] = &workerProcess{owner: owner, cmd: cmd, stdin: stdin}
	p.out.say(owner, "process %d", cmd.Process.Pid)
	p.readers.Go(func() { readEvents(stdout, p.events) })
	return nil
}

// end ends the workers that are left.
func (p *play) end() {
	for _, w := range p.workers {
		_ = w.cmd.Process.Kill() // it may be gone
		_ = w.stdin.Close()
	}
	go func() {
		p.readers.Wait()
		close(p.events)
	}()
	for range p.events { // a reader may wait to tell
	}
	for _, w := range p.workers {
		_ = w.cmd.Wait() // killed, which is no news
	}
}

// run enqueues the payments and watches until all are settled and the late worker has tried.
func (p *play) run(ctx context.Context) error {
	if err := p.enqueue(ctx); err != nil {
		return err
	}
	look := time.NewTicker(100 * time.Millisecond)
	defer look.Stop()
	for !p.done() {
		select {
		case e := <-p.events:
			if err := p.hear(e); err != nil {
				return err
			}
		case <-look.C:
			if err := p.lookForExpiry(ctx); err != nil {
				return err
			}
		case <-p.svc.ended:
			return errors.New("the service ended in the middle of the demo")
		case <-ctx.Done():
			return fmt.Errorf("%d of %d payments are settled", len(p.settled), len(p.cast))
		}
	}
	return nil
}

// lookForExpiry tells when the leases of the silent workers have run out.
func (p *play) lookForExpiry(ctx context.Context) error {
	for paymentID, owner := range p.holders() {
		if owner == "" || p.expired[paymentID] {
			continue
		}
		list, err := p.svc.jobs.ListLeases(ctx, &pb.ListLeasesRequest{JobId: p.jobs[paymentID]})
		if err != nil {
			return err
		}
		if l := list.GetLeases()[0]; l.GetEnd() == expired {
			p.expired[paymentID] = true
			silent := l.GetEndedAt().AsTime().Sub(l.GetLastBeatAt().AsTime()).Round(100 * time.Millisecond)
			p.out.loud("service", "lease %d of %s on %s has run out, %v after its last heartbeat: the next may take it", l.GetLeaseNo(), owner, paymentID, silent)
		}
	}
	return nil
}

// enqueue puts all payments in at once. One that is refused would not void the others; here it
// would be the end of the demo.
func (p *play) enqueue(ctx context.Context) error {
	var kinds []string
	batch := &pb.BatchEnqueueRequest{}
	for _, s := range p.cast {
		item, err := s.request()
		if err != nil {
			return err
		}
		batch.Items = append(batch.Items, item)
		kinds = append(kinds, s.kind)
	}
	resp, err := p.svc.jobs.BatchEnqueue(ctx, batch)
	if err != nil {
		return err
	}
	for i, result := range resp.GetResults() {
		if refused := result.GetError(); refused != nil {
			return fmt.Errorf("%s was not enqueued: %s", p.cast[i].ID, refused.GetMessage())
		}
		p.jobs[p.cast[i].ID] = result.GetOk().GetJobId()
	}
	p.out.say("producer", "%d payments enqueued: %s", len(kinds), strings.Join(kinds, ", "))
	return nil
}

// done tells whether there is nothing more to come.
func (p *play) done() bool {
	return len(p.settled) == len(p.cast) && len(p.refused) == len(lateCalls)
}

// lateCalls are what the stopped worker tries when it goes on too late.
var lateCalls = []string{"Heartbeat", callPosting, "Complete"}

// hear tells what a worker did, and interferes at the moments that matter.
func (p *play) hear(e event) error {
	// Of what nobody interferes with, the stages are not worth a line.
	if _, watched := p.holders()[e.Payment]; !e.Quiet && (watched || e.Kind != kindBeat) {
		p.out.say(e.Owner, "%s", e)
	}
	switch e.Kind {
	case kindBeat:
		return p.interfere(e)
	case kindSettled:
		p.settled[e.Payment] = e
		if e.Payment == stoppedPayment && !p.resumed {
			p.resumed = true
			return p.signal(p.stopped, syscall.SIGCONT, "SIGCONT: it goes on, and does not know that its lease is gone")
		}
	case kindLeased:
		if from := p.holders()[e.Payment]; from != "" {
			p.takenOver[e.Payment] = e
			p.out.loud(e.Owner, "takes %s over where %s was: stage %q, checkpoint %q", e.Payment, from, e.Stage, e.Note)
		}
	case kindRefused:
		if e.Owner == p.stopped {
			p.refused[e.Call] = e
		}
		if len(p.refused) == len(lateCalls) {
			p.out.loud(e.Owner, "was too late with everything: nothing of it took effect")
		}
	}
	return nil
}

// holders are the workers that were silenced, by payment.
func (p *play) holders() map[string]string {
	return map[string]string{killedPayment: p.killed, stoppedPayment: p.stopped}
}

// interfere kills one worker and stops another in the middle of a payment. By then the stage
// and the checkpoint are on record: the heartbeat that told so has been answered.
func (p *play) interfere(e event) error {
	switch {
	case e.Stage != "capture" || e.Done != interfereAt:
	case e.Payment == killedPayment && p.killed == "":
		p.killed = e.Owner
		return p.signal(e.Owner, syscall.SIGKILL, fmt.Sprintf("kill -9, in the middle of %s: %d parts are captured", e.Payment, e.Done))
	case e.Payment == stoppedPayment && p.stopped == "":
		p.stopped = e.Owner
		return p.signal(e.Owner, syscall.SIGSTOP, fmt.Sprintf("SIGSTOP, in the middle of %s: %d parts are captured", e.Payment, e.Done))
	}
	return nil
}

func (p *play) signal(owner string, sig syscall.Signal, what string) error {
	if err := p.workers[owner].cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("%s to %s: %w", sig, owner, err)
	}
	p.out.loud(owner, "%s", what)
	return nil
}
