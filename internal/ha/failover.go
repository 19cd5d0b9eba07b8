package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/internal/faultproxy"
	"github.com/leasehold/leasehold/internal/privatepg"
)

// behindFor is how long an asynchronous standby hears nothing before its primary dies.
const behindFor = 2 * time.Second

// pair is a primary and its standby.
type pair struct {
	primary, standby *privatepg.Server
	link             *faultproxy.Proxy // by which the standby follows
}

// failover kills a primary under load and promotes its standby. The replicas know both by one
// URL, and none is restarted. Then the old primary comes back and would take writes.
func failover(ctx context.Context, s *scene) error {
	if err := s.build(ctx); err != nil {
		return err
	}
	if s.async {
		s.behind = cmp.Or(s.behind, behindFor)
	}
	s.mayLose = s.behind > 0
	p, err := s.startPair(ctx)
	if err != nil {
		return err
	}
	defer p.link.Close()
	for i := range 3 {
		url := fmt.Sprintf("%s&application_name=leasehold-%d", p.url(), i)
		if err := s.startMember(ctx, s.binary, url, "--max-connection-age", connectionAge.String()); err != nil {
			return err
		}
	}
	began := time.Now()
	if err := s.startLoad(ctx); err != nil {
		return err
	}
	if s.behind > 0 {
		p.link.Swallow(faultproxy.ToClient, true)
		s.say("the standby hears nothing from here on")
		if !rest(ctx, s.behind) {
			return ctx.Err()
		}
	}
	pids := s.pids()
	if err := s.promote(ctx, p); err != nil {
		return err
	}
	if err := s.workGoesOn(ctx); err != nil {
		return err
	}
	if err := s.comeback(ctx, p); err != nil {
		return err
	}
	if err := s.settle(ctx, began); err != nil {
		return err
	}
	if got := s.pids(); got != pids {
		return fmt.Errorf("the processes of the replicas were %s and are %s", pids, got)
	}
	return s.strayed(ctx, p)
}

// startPair starts a primary with the jobs, and a standby of it.
func (s *scene) startPair(ctx context.Context) (*pair, error) {
	p := &pair{}
	var err error
	if p.primary, err = s.startDatabase(ctx); err != nil {
		return nil, err
	}
	if p.link, err = faultproxy.New(fmt.Sprintf("127.0.0.1:%d", p.primary.Port())); err != nil {
		return nil, err
	}
	p.standby, err = privatepg.StartStandby(ctx, p.primary, p.link.Addr(), privatepg.Config{DataDir: filepath.Join(s.dir, "standby")})
	if err != nil {
		return nil, err
	}
	s.servers = append(s.servers, p.standby)
	if s.async {
		return p, nil
	}
	return p, p.primary.AwaitStandby(ctx)
}

// url names both servers, and asks for the one that takes writes.
func (p *pair) url() string {
	u, err := url.Parse(p.primary.URL(database))
	if err != nil {
		panic(err) // it was made by this program
	}
	query := u.Query()
	query.Set("target_session_attrs", "read-write")
	query.Set("connect_timeout", "3")
	u.RawQuery = query.Encode()
	u.Host += fmt.Sprintf(",127.0.0.1:%d", p.standby.Port())
	return u.String()
}

func (s *scene) pids() string {
	var pids []string
	for _, m := range s.members {
		pids = append(pids, fmt.Sprint(m.PID()))
	}
	return strings.Join(pids, ", ")
}

// promote kills the primary, promotes the standby at once, and measures until a job is stored.
func (s *scene) promote(ctx context.Context, p *pair) error {
	killed := time.Now()
	if err := p.primary.Kill(); err != nil {
		return err
	}
	if err := p.standby.Promote(ctx); err != nil {
		return err
	}
	promoted := time.Now()
	s.final = p.standby
	err := await(ctx, "a job is stored after the promotion", func() bool { return s.load.lastWrite.Load() > promoted.UnixNano() })
	if err != nil {
		return err
	}
	first := time.Unix(0, s.load.lastWrite.Load())
	s.fact("the standby was promoted %.1f s after the primary's death, and a job was stored %.1f s after that", promoted.Sub(killed).Seconds(), first.Sub(promoted).Seconds())
	return nil
}

// comeback starts the old primary again, as an orchestrator does that has not fenced it. It takes
// writes, and stands first in the URL.
func (s *scene) comeback(ctx context.Context, p *pair) error {
	// A replica knows of the promotion when it has reached the new primary.
	if err := s.allReach(ctx, p.standby); err != nil {
		return err
	}
	if err := p.primary.Restart(ctx); err != nil {
		return err
	}
	// Its commits would else wait for a standby for ever, and the stray ones would not be seen.
	if err := execute(ctx, p.primary.SocketURL("postgres"), `ALTER SYSTEM RESET synchronous_standby_names`); err != nil {
		return err
	}
	if err := execute(ctx, p.primary.SocketURL("postgres"), `SELECT pg_reload_conf()`); err != nil {
		return err
	}
	s.say("the old primary is back and takes writes")
	// New sessions are what may go astray: all present ones end.
	err := execute(ctx, p.standby.SocketURL("postgres"), `SELECT count(pg_terminate_backend(a.pid)) FROM pg_stat_activity a WHERE a.application_name LIKE 'leasehold%'`)
	return errors.Join(err, s.workGoesOn(ctx))
}

// allReach waits until each replica has a session on a server.
func (s *scene) allReach(ctx context.Context, server *privatepg.Server) error {
	conn, err := pgx.Connect(ctx, server.SocketURL(database))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // only read from
	return await(ctx, "all replicas have reached the new primary", func() bool {
		var n int
		return conn.QueryRow(ctx, sqlReplicas).Scan(&n) == nil && n == len(s.members)
	})
}

const sqlReplicas = `SELECT count(DISTINCT a.application_name)::int FROM pg_stat_activity a WHERE a.application_name LIKE 'leasehold-%'`

// strayed fails where anything was written on the old primary after it came back.
func (s *scene) strayed(ctx context.Context, p *pair) error {
	var sessions, jobs int
	var writing bool
	conn, err := pgx.Connect(ctx, p.primary.SocketURL(database))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // only read from
	if err := conn.QueryRow(ctx, sqlStray).Scan(&sessions, &jobs, &writing); err != nil {
		return err
	}
	s.fact("the old primary, back and writable, has %d sessions of replicas and got %d jobs", sessions, jobs)
	if sessions > 0 || jobs > 0 || writing {
		return errors.New("the replicas went back to the old primary")
	}
	return nil
}

// sqlStray looks for sessions, jobs and heartbeats of the service itself since the server's start.
const sqlStray = `
SELECT (SELECT count(*)::int FROM pg_stat_activity a WHERE a.application_name LIKE 'leasehold%'),
       (SELECT count(*)::int FROM leasehold.all_jobs j WHERE j.created_at > pg_postmaster_start_time()),
       s.stamped_at > pg_postmaster_start_time()
FROM leasehold.service s`
