package client_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/grpc"

	"github.com/leasehold/leasehold/client"
)

// childEnv makes the test binary a worker process, which its tests stop, continue and signal. Its
// value is a childConfig.
const childEnv = "LEASEHOLD_CLIENT_TEST_CHILD"

// childConfig says what a worker process does. It prints a line for what happens to its handlers,
// and "finish" on its standard input lets them finish.
type childConfig struct {
	Endpoints   []string
	Queue       string
	Lease       time.Duration
	Concurrency int
	Grace       time.Duration
	// Ledger is the database with the table effects, which a handler that ends writes to.
	Ledger string
	// Work is how long a handler works, without waiting to be let finish.
	Work time.Duration
	// Busy handlers compute while they wait.
	Busy bool
	// Stubborn handlers finish, though they were cancelled.
	Stubborn bool
	// HoldBeats keeps every heartbeat from being sent.
	HoldBeats bool
	// Hinder delays every second heartbeat by 0.8 of the lease, and lets the third hang for ever.
	Hinder bool
}

func child(text string) int {
	var cfg childConfig
	if err := json.Unmarshal([]byte(text), &cfg); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	service, err := client.Connect(cfg.Endpoints, client.ConnectConfig{DialOptions: []grpc.DialOption{grpc.WithUnaryInterceptor(cfg.intercept())}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	defer service.Close()
	finish := make(chan struct{})
	go func() {
		if line, _ := bufio.NewReader(os.Stdin).ReadString('\n'); line != "" {
			close(finish)
		}
	}()
	w, err := client.NewWorker(service, client.WorkerConfig{
		Queues: []string{cfg.Queue}, Handler: cfg.handler(finish), Concurrency: cfg.Concurrency, LeaseDuration: cfg.Lease, Grace: cfg.Grace,
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	go func() {
		<-signals
		fmt.Println("draining")
	}()
	err = client.RunUntilSignal(context.Background(), w)
	fmt.Println("ended", err)
	return 0
}

func (c childConfig) handler(finish <-chan struct{}) client.Handler {
	return func(ctx context.Context, job *client.Job) error {
		fmt.Println("began", job.ID(), job.LeaseNo())
		worked := make(<-chan time.Time)
		if c.Work > 0 {
			worked = time.After(c.Work)
		}
		select {
		case <-finish:
		case <-worked:
		case <-ctx.Done():
		case <-c.spin(ctx, finish):
		}
		if cause := context.Cause(ctx); cause != nil {
			fmt.Println("cancelled", job.ID(), kindOf(cause))
			if !c.Stubborn {
				return cause
			}
		}
		if c.Ledger != "" {
			n, err := settle(c.Ledger, job.ID(), job.LeaseNo())
			fmt.Println("wrote", job.ID(), n, err)
		}
		return nil
	}
}

// spin computes until one of the two ends; nil where the handlers only wait.
func (c childConfig) spin(ctx context.Context, finish <-chan struct{}) <-chan struct{} {
	if !c.Busy {
		return nil
	}
	for n := 0; ; n++ {
		if n%1_000_000 == 0 {
			select {
			case <-finish:
				return finish
			case <-ctx.Done():
				return ctx.Done()
			default:
			}
		}
	}
}

func kindOf(cause error) string {
	var lost *client.LostError
	if errors.As(cause, &lost) {
		return lost.Reason.String()
	}
	return fmt.Sprintf("%T", cause)
}

func (c childConfig) intercept() grpc.UnaryClientInterceptor {
	var beats atomic.Int64
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if !strings.HasSuffix(method, "/BatchHeartbeat") {
			return next(ctx, method, req, reply, cc, opts...)
		}
		n := beats.Add(1)
		switch {
		case c.HoldBeats:
			<-ctx.Done()
		case c.Hinder && n == 3:
			select {}
		case c.Hinder && n%2 == 0:
			late := time.NewTimer(c.Lease * 8 / 10)
			defer late.Stop()
			<-late.C
		}
		return next(ctx, method, req, reply, cc, opts...)
	}
}

// settle writes an effect that is guarded by the fencing number, and returns how many rows changed.
func settle(url, job string, fence int64) (int64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), callTime)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return 0, err
	}
	defer conn.Close(ctx)
	tag, err := conn.Exec(ctx, `INSERT INTO effects AS e (job_id, fence, times) VALUES ($1, $2, 1)
		ON CONFLICT (job_id) DO UPDATE SET fence = EXCLUDED.fence, times = e.times + 1 WHERE e.fence < EXCLUDED.fence`, job, fence)
	return tag.RowsAffected(), err
}

// ledger makes the table that settle writes to.
func (w *world) ledger() string {
	w.t.Helper()
	w.db.Exec(w.t, `CREATE TABLE effects (job_id text PRIMARY KEY, fence bigint NOT NULL, times int NOT NULL)`)
	return w.db.URL
}

// process is a worker process.
type process struct {
	t     testing.TB
	cmd   *exec.Cmd
	stdin io.WriteCloser
	ended chan struct{}

	mu    sync.Mutex
	lines []string
}

// startProcess starts a worker process, which ends with the test.
func startProcess(t testing.TB, cfg childConfig, env ...string) *process {
	t.Helper()
	text, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, cmd: exec.Command(os.Args[0]), ended: make(chan struct{})}
	p.cmd.Env = append(append(os.Environ(), env...), childEnv+"="+string(text))
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.Stderr = os.Stderr
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go p.read(stdout)
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it may have ended
		<-p.ended
	})
	return p
}

func (p *process) read(stdout io.Reader) {
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		p.mu.Lock()
		p.lines = append(p.lines, lines.Text())
		p.mu.Unlock()
	}
	_ = p.cmd.Wait() // tests look at what it said
	close(p.ended)
}

// said are the lines that begin with a word.
func (p *process) said(word string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []string
	for _, line := range p.lines {
		if strings.HasPrefix(line, word) {
			out = append(out, line)
		}
	}
	return out
}

// awaitLines waits until the process has said n lines that begin with a word.
func (p *process) awaitLines(word string, n int) []string {
	p.t.Helper()
	eventually(p.t, fmt.Sprintf("%d lines %q", n, word), func() bool { return len(p.said(word)) >= n })
	return p.said(word)
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// finish lets the handlers finish.
func (p *process) finish() {
	p.t.Helper()
	if _, err := io.WriteString(p.stdin, "finish\n"); err != nil {
		p.t.Fatal(err)
	}
}
