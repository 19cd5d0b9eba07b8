package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

const (
	serviceProgram = "github.com/leasehold/leasehold/cmd/leasehold"
	// stopPatience is how long the service may take to end.
	stopPatience = 20 * time.Second
)

// service is the leasehold process, and a connection to it.
type service struct {
	cmd    *exec.Cmd
	log    bytes.Buffer
	ended  chan struct{}
	grpc   string
	conn   *grpc.ClientConn
	jobs   pb.JobServiceClient
	queues pb.QueueServiceClient
}

// build makes the service's binary.
func build(ctx context.Context, binary string) error {
	ctx, cancel := context.WithTimeout(ctx, buildPatience)
	defer cancel()
	said, err := exec.CommandContext(ctx, "go", "build", "-o", binary, serviceProgram).CombinedOutput()
	if err != nil {
		return fmt.Errorf("go build: %w\n%s", err, said)
	}
	return nil
}

// startService runs `leasehold dev` with a database that is gone afterwards, on free ports.
func startService(ctx context.Context, dir, binary string, out *narrator) (*service, error) {
	ready := filepath.Join(dir, "ready")
	s := &service{ended: make(chan struct{})}
	s.cmd = exec.Command(binary, "dev", "--ephemeral", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0",
		"--watcher-interval", "500ms", "--log-level", "warn", "--ready-file", ready)
	s.cmd.Stderr = &s.log
	// A group of its own: Ctrl-C must reach it once, from stop. A second signal would end it
	// at once.
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = s.cmd.Wait() // its state is read from cmd
		close(s.ended)
	}()
	if err := s.connect(ctx, ready); err != nil {
		return nil, errors.Join(err, s.stop(true))
	}
	out.say("service", "leasehold with a private PostgreSQL, on %s", s.grpc)
	return s, nil
}

// connect waits for the ready file, which has the addresses.
func (s *service) connect(ctx context.Context, ready string) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for s.grpc == "" {
		select {
		case <-tick.C:
		case <-s.ended:
			return errors.New("the service ended before it was ready")
		case <-ctx.Done():
			return errors.New("the service is not ready")
		}
		text, err := os.ReadFile(ready)
		if err != nil {
			continue // not yet
		}
		for line := range strings.Lines(string(text)) {
			if address, ok := strings.CutPrefix(strings.TrimSpace(line), "grpc="); ok {
				s.grpc = address
			}
		}
	}
	conn, err := grpc.NewClient(s.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	s.conn = conn
	s.jobs, s.queues = pb.NewJobServiceClient(conn), pb.NewQueueServiceClient(conn)
	return nil
}

// stop ends the service in an orderly way. After a failure it shows what the service said.
func (s *service) stop(failed bool) error {
	if s.conn != nil {
		s.conn.Close()
	}
	_ = s.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	var err error
	select {
	case <-s.ended:
		if code := s.cmd.ProcessState.ExitCode(); code != 0 {
			err = fmt.Errorf("the service ended with exit code %d", code)
		}
	case <-time.After(stopPatience):
		_ = s.cmd.Process.Kill()
		<-s.ended
		err = fmt.Errorf("the service did not end within %v", stopPatience)
	}
	if failed || err != nil {
		fmt.Fprintf(os.Stderr, "--- the service said:\n%s---\n", s.log.String())
	}
	return err
}
