package privatepg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// sqlstateInvalidPassword: the server is up and will never let us in.
const sqlstateInvalidPassword = "28P01"

// errPortTaken says that the server died because somebody has its port.
var errPortTaken = errors.New("the port is taken")

// launchOnPort starts the server on the configured port, or on a free one.
func (s *Server) launchOnPort(ctx context.Context) error {
	s.port = s.cfg.Port
	if s.port != 0 {
		return s.launch(ctx)
	}
	// Between the search and the server's own bind another process may take it.
	const tries = 5
	var err error
	for range tries {
		if s.port, err = freePort(); err != nil {
			return err
		}
		if err = s.launch(ctx); !errors.Is(err, errPortTaken) {
			return err
		}
	}
	return err
}

// freePort returns a port that is free now, from below those which systems give
// to outgoing connections: one of these could take the port while the server is
// down for a restart.
func freePort() (int, error) {
	const low, high, tries = 15000, 32000, 100
	for range tries {
		port := low + rand.IntN(high-low)
		if portFree(port) {
			return port, nil
		}
	}
	return 0, fmt.Errorf("no free port among %d tries in %d..%d", tries, low, high)
}

func portFree(port int) bool {
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return false
	}
	return listener.Close() == nil
}

// launch starts the server and waits until it accepts connections. If it fails,
// nothing runs.
func (s *Server) launch(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.StartTimeout)
	defer cancel()
	if err := disownPIDFile(s.layout.pgdata()); err != nil {
		return err
	}
	log, offset, err := openLog(s.layout.log())
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := command(s.bin, "postgres", s.cfg.serverArgs(s.layout.pgdata(), s.layout.sockets(), s.port), s.account)
	cmd.Stdout, cmd.Stderr = log, log
	proc, err := startProcess(cmd)
	if err != nil {
		return &StartError{Step: "postgres", Err: err}
	}
	s.proc = proc
	if err := s.awaitReady(ctx); err != nil {
		return s.failLaunch(err, offset)
	}
	s.log.Info("private PostgreSQL started", "pid", proc.pid, "port", s.port, "version", s.bin.Major,
		"data_dir", s.layout.pgdata())
	return nil
}

func (s *Server) failLaunch(cause error, logOffset int64) error {
	if !s.proc.running() && !s.cfg.SocketOnly && !portFree(s.port) {
		cause = fmt.Errorf("%w: %w", errPortTaken, cause)
	}
	if err := s.end(context.Background(), true); err != nil {
		cause = errors.Join(cause, err)
	}
	return &StartError{Step: "postgres", Log: logTail(s.layout.log(), logOffset), Err: cause}
}

// awaitReady polls by the unix socket: whoever answers there is our own server,
// while another one might answer on the port.
func (s *Server) awaitReady(ctx context.Context) error {
	ticker := time.NewTicker(2 * pollInterval)
	defer ticker.Stop()
	lastErr := errors.New("it was not reached")
	for {
		select {
		case <-s.proc.done:
			return fmt.Errorf("it ended: %w", endOf(s.proc))
		case <-ctx.Done():
			return fmt.Errorf("it accepts no connections: %w (%w)", lastErr, ctx.Err())
		case <-ticker.C:
		}
		err := s.ping(ctx)
		if err == nil {
			return nil
		}
		var refusal *pgconn.PgError
		if errors.As(err, &refusal) && refusal.Code == sqlstateInvalidPassword {
			return fmt.Errorf("%s does not fit the data: %w", s.layout.password(), err)
		}
		// The deadline's own error says nothing of the server.
		if ctx.Err() == nil {
			lastErr = err
		}
	}
}

// endOf is how a process ended: a server that exits with 0 is no success here.
func endOf(p *process) error {
	if p.err == nil {
		return errors.New("exit status 0")
	}
	return p.err
}

func (s *Server) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.SocketURL(superuser))
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

// logTail is the end of what the log got since the offset.
func logTail(path string, offset int64) string {
	file, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer file.Close()
	if _, err := file.Seek(offset, io.SeekStart); err != nil {
		return err.Error()
	}
	content, err := io.ReadAll(io.LimitReader(file, maxLogSize))
	if err != nil {
		return err.Error()
	}
	return lastLines(content)
}
