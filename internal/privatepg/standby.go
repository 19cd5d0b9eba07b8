package privatepg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// StartStandby makes a copy of the primary in cfg.DataDir, by pg_basebackup, and starts it as a
// streaming standby that may be read from. It has the primary's superuser and password. upstream
// is the address ("host:port") by which it follows the primary, as of a proxy between them; empty
// is the primary's own. The standby is another Server: it lives on where the primary ends.
//
// The folder must not hold data yet. Fails as [Start] does; Step of a [StartError] is then
// "pg_basebackup" where the copy failed.
func StartStandby(ctx context.Context, primary *Server, upstream string, cfg Config) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.DataDir == "" {
		return nil, errors.New("a standby needs a data directory")
	}
	cfg = cfg.withDefaults()
	l, who, err := newLayout(cfg)
	if err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, log: cfg.Logger, layout: l, account: who, bin: primary.bin, password: primary.password}
	if err := s.copyOf(ctx, primary, upstream); err != nil {
		return nil, errors.Join(err, l.release())
	}
	if err := s.launchOnPort(ctx); err != nil {
		return nil, errors.Join(err, l.release())
	}
	return s, nil
}

// copyOf fills the data directory from the primary and says whom to follow.
func (s *Server) copyOf(ctx context.Context, primary *Server, upstream string) error {
	if _, err := os.Stat(s.layout.pgdata()); err == nil {
		return fmt.Errorf("there is data in %s: a standby begins as a copy", s.layout.pgdata())
	}
	if err := os.WriteFile(s.layout.password(), []byte(s.password+"\n"), 0o600); err != nil {
		return err
	}
	unfinished := s.layout.pgdata() + ".new"
	if err := os.Mkdir(unfinished, 0o700); err != nil {
		return err
	}
	if err := s.account.own(unfinished); err != nil {
		return err
	}
	if err := s.baseBackup(ctx, primary, unfinished); err != nil {
		return err
	}
	if err := s.follow(primary, upstream, unfinished); err != nil {
		return err
	}
	return os.Rename(unfinished, s.layout.pgdata())
}

func (s *Server) baseBackup(ctx context.Context, primary *Server, target string) error {
	args := []string{"-D", target, "--checkpoint=fast", "--wal-method=stream", "--no-password", "-d", primary.SocketURL(superuser)}
	if s.cfg.Ephemeral {
		args = append(args, "--no-sync")
	}
	cmd := command(s.bin, "pg_basebackup", args, s.account)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	p, err := startProcess(cmd)
	if err != nil {
		return &StartError{Step: "pg_basebackup", Err: err}
	}
	if !p.wait(ctx) {
		return errors.Join(p.destroy(), &StartError{Step: "pg_basebackup", Log: lastLines(output.Bytes()), Err: ctx.Err()})
	}
	if p.err != nil {
		return &StartError{Step: "pg_basebackup", Log: lastLines(output.Bytes()), Err: p.err}
	}
	return nil
}

// follow writes primary_conninfo, which holds the password: it stands in a file of the data
// directory and not among the arguments, which every user of the machine may read.
func (s *Server) follow(primary *Server, upstream, pgdata string) error {
	host, port := "127.0.0.1", fmt.Sprint(primary.Port())
	if before, after, is := strings.Cut(upstream, ":"); is {
		host, port = before, after
	}
	info := fmt.Sprintf("host=%s port=%s user=%s password=%s sslmode=disable application_name=standby", host, port, superuser, s.password)
	auto := filepath.Join(pgdata, "postgresql.auto.conf")
	file, err := os.OpenFile(auto, os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(file, "primary_conninfo = '%s'\n", info)
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	signal := filepath.Join(pgdata, "standby.signal")
	if err := os.WriteFile(signal, nil, 0o600); err != nil {
		return err
	}
	return s.account.own(signal)
}

// AwaitStandby makes the server confirm no commit before its standby has it on disk, and returns
// when a standby is there: before that every commit would hang.
func (s *Server) AwaitStandby(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.SocketURL(superuser))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // the answers are there
	tick := time.NewTicker(2 * pollInterval)
	defer tick.Stop()
	for streams := false; !streams; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("no standby follows: %w", ctx.Err())
		}
		if err := conn.QueryRow(ctx, sqlStandbyStreams).Scan(&streams); err != nil {
			return err
		}
	}
	if _, err := conn.Exec(ctx, sqlSynchronous); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, sqlReload); err != nil {
		return err
	}
	// The setting holds for a session when that has read it, and counts when the sender has.
	for waits := false; !waits; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("no standby is synchronous: %w", ctx.Err())
		}
		if err := conn.QueryRow(ctx, sqlStandbySynchronous).Scan(&waits); err != nil {
			return err
		}
	}
	return nil
}

const (
	sqlStandbyStreams     = `SELECT EXISTS (SELECT FROM pg_stat_replication r WHERE r.state = 'streaming')`
	sqlStandbySynchronous = `SELECT EXISTS (SELECT FROM pg_stat_replication r WHERE r.sync_state = 'sync')`
	sqlSynchronous        = `ALTER SYSTEM SET synchronous_standby_names = '*'`
	sqlReload             = `SELECT pg_reload_conf()`
)

// Promote makes a standby the primary and returns when it takes writes.
func (s *Server) Promote(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.SocketURL(superuser))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // the answer is there
	var promoted bool
	if err := conn.QueryRow(ctx, sqlPromote).Scan(&promoted); err != nil {
		return err
	}
	if !promoted {
		return errors.New("the standby was not promoted within a minute")
	}
	return nil
}

const sqlPromote = `SELECT pg_promote(true, 60)`
