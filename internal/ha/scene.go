package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/internal/privatepg"
	"github.com/leasehold/leasehold/internal/replica"
)

const (
	database = "leasehold"
	// patience bounds each wait for something that must come about, on a busy machine.
	patience = time.Minute
	// leaseLength is well above every outage that a trial makes: a lease that ends by its time
	// is then a lease that was lost.
	leaseLength = 60 * time.Second
	// shortLease is for trials in which leases are lost, and run out before the end is awaited.
	shortLease = 10 * time.Second
	// connectionAge makes each client connect anew many times within a trial.
	connectionAge = 2 * time.Second
)

// scene is what a trial plays on.
type scene struct {
	config
	dir     string
	servers []*privatepg.Server
	members []*replica.Replica
	load    *load
	// final is where the tables are read in the end.
	final *privatepg.Server
	facts []string // lines of the report
	// mayLose tells that acknowledged work may be gone: it is counted and not judged.
	mayLose bool
}

func (s *scene) fact(format string, args ...any) {
	s.facts = append(s.facts, fmt.Sprintf(format, args...))
	s.say(format, args...)
}

// build makes the binary of this version.
func (s *scene) build(ctx context.Context) error {
	if s.binary != "" {
		return nil
	}
	s.say("building the service")
	var err error
	s.binary, err = replica.Build(ctx, s.dir)
	return err
}

// startDatabase starts the server that has the jobs.
func (s *scene) startDatabase(ctx context.Context) (*privatepg.Server, error) {
	pg, err := privatepg.Start(ctx, privatepg.Config{DataDir: filepath.Join(s.dir, "primary")})
	if err != nil {
		return nil, err
	}
	s.servers, s.final = append(s.servers, pg), pg
	return pg, execute(ctx, pg.SocketURL("postgres"), "CREATE DATABASE "+database)
}

func execute(ctx context.Context, url, sql string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // the answer is there
	_, err = conn.Exec(ctx, sql)
	return err
}

// startMember starts a replica of a binary.
func (s *scene) startMember(ctx context.Context, binary, url string, args ...string) error {
	dir := filepath.Join(s.dir, fmt.Sprint("replica-", len(s.members)))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	m, err := replica.Start(ctx, replica.Config{
		Binary: binary, DatabaseURL: url, Dir: dir,
		Args: append([]string{"--watcher-interval", "500ms", "--drain-timeout", "20s"}, args...),
	})
	if err == nil {
		s.members = append(s.members, m)
	}
	return err
}

// startFleet starts three replicas of this version.
func (s *scene) startFleet(ctx context.Context, url string) error {
	for range 3 {
		if err := s.startMember(ctx, s.binary, url, "--max-connection-age", connectionAge.String()); err != nil {
			return err
		}
	}
	return nil
}

// restart lets a replica drain and starts it again at its address.
func (s *scene) restart(ctx context.Context, i int) error {
	m := s.members[i]
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	began := time.Now()
	if err := m.Stop(ctx); err != nil {
		return err
	}
	drained := time.Since(began)
	if err := m.Start(ctx); err != nil {
		return err
	}
	s.say("replica %d drained in %.1f s and was back after %.1f s", i, drained.Seconds(), time.Since(began).Seconds())
	return nil
}

// startLoad lets the workers begin, and waits until work is done.
func (s *scene) startLoad(ctx context.Context) error {
	var addresses []string
	for _, m := range s.members {
		addresses = append(addresses, m.GRPC())
	}
	length := leaseLength
	if s.mayLose {
		length = shortLease
	}
	s.load = newLoad(addresses, length)
	if err := s.load.createQueue(ctx); err != nil {
		return err
	}
	s.load.start(s.workers)
	return s.workGoesOn(ctx)
}

// workGoesOn waits until jobs are completed that were not before.
func (s *scene) workGoesOn(ctx context.Context) error {
	from := s.load.ended.Load()
	return await(ctx, "jobs are completed", func() bool { return s.load.ended.Load() > from+50 })
}

// settle lets the load last for its time, and be worked off.
func (s *scene) settle(ctx context.Context, began time.Time) error {
	if left := s.duration - time.Since(began); left > 0 {
		rest(ctx, left)
	}
	s.load.endProducers()
	s.say("the workers finish what is left")
	conn, err := pgx.Connect(ctx, s.final.SocketURL(database))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // only read from
	err = await(ctx, "all jobs have ended", func() bool {
		var live int
		return conn.QueryRow(ctx, `SELECT count(*)::int FROM leasehold.jobs`).Scan(&live) == nil && live == 0
	})
	s.load.endWorkers()
	return err
}

// await polls a condition that nothing announces.
func await(ctx context.Context, what string, is func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for !is() {
		if !rest(ctx, 20*time.Millisecond) {
			return fmt.Errorf("never came about: %s", what)
		}
	}
	return nil
}

func rest(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// tellLogs shows the end of what the replicas said, where a trial could not be played.
func (s *scene) tellLogs(out io.Writer) {
	for i, m := range s.members {
		lines := strings.Split(strings.TrimSpace(m.Log()), "\n")
		tell(out, "replica %d said:\n%s\n", i, strings.Join(lines[max(0, len(lines)-15):], "\n"))
	}
}

// close ends everything that was started, the last first.
func (s *scene) close() error {
	if s.load != nil {
		s.load.close()
	}
	for _, m := range s.members {
		m.Kill()
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var err error
	for _, pg := range s.servers {
		err = errors.Join(err, pg.Stop(ctx))
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}
