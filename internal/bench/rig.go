package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
)

const (
	queueName  = "bench"
	workerName = "bench-worker/1"
)

// Server is the PostgreSQL server under measurement.
type Server interface {
	// NewDatabase makes a database of the benchmark's own, with the schema.
	NewDatabase(ctx context.Context) (Database, error)
	// Postmaster is the id of the server's main process on this machine, 0 where it is not
	// known.
	Postmaster() int
}

// Database is one database with the schema.
type Database interface {
	URL() string
	// Drop removes it, whoever is connected.
	Drop(ctx context.Context) error
	// FillPending puts n jobs that are due into a queue.
	FillPending(ctx context.Context, queue string, n int64, payload []byte) error
	// FillFinished adds n completed jobs of a queue.
	FillFinished(ctx context.Context, queue string, n int64, payload []byte) error
	// Settle does what autovacuum would do after a filling, in the middle of a round.
	Settle(ctx context.Context) error
	// RemoveDead removes the dead rows of live jobs.
	RemoveDead(ctx context.Context) error
	// HoldSnapshot holds a REPEATABLE READ snapshot until the function that it returns is
	// called.
	HoldSnapshot(ctx context.Context) (end func() error, err error)
	// Commit commits a transaction that writes next to nothing.
	Commit(ctx context.Context) error
	// Transactions counts those of the database so far, without what the count itself takes.
	Transactions(ctx context.Context) (int64, error)
	// Connections counts those of services, without the benchmark's own.
	Connections(ctx context.Context) (int, error)
	// Updates counts updates of the table of live jobs so far, and how many were heap-only.
	Updates(ctx context.Context) (all, hot int64, err error)
	// LiveLeases counts first leases that live.
	LiveLeases(ctx context.Context) (int64, error)
}

// Deps are what the benchmark measures and cannot make itself.
type Deps struct {
	// Binary is the program whose `serve` is measured and whose `bench noop` serves the calls
	// that do nothing.
	Binary string
	Server Server
	// OpenStore opens the store itself on a database. Its connections are not among those
	// that Database.Connections counts.
	OpenStore func(ctx context.Context, url string) (st store.Store, end func(), err error)
	// Progress gets a line for each round and each step of preparation.
	Progress io.Writer
}

// rig is what a workload works with. Whatever it opens is closed when the workload is over.
type rig struct {
	deps Deps
	plan Plan
	undo []func() error
	// watched is the service whose processor time is told; nil: none.
	watched *child
	// notes are what the round under way tells beside its figures.
	notes []string
}

func (r *rig) later(undo func() error) { r.undo = append(r.undo, undo) }

// close undoes everything, the last first.
func (r *rig) close() error {
	var faults []error
	for i := len(r.undo) - 1; i >= 0; i-- {
		faults = append(faults, r.undo[i]())
	}
	r.undo = nil
	return errors.Join(faults...)
}

// say adds a line to the progress of the workload.
func (r *rig) say(format string, args ...any) {
	fmt.Fprintln(r.deps.Progress, "     ", fmt.Sprintf(format, args...))
}

// note adds to the line of the round under way.
func (r *rig) note(format string, args ...any) {
	r.notes = append(r.notes, fmt.Sprintf(format, args...))
}

func (r *rig) takeNotes() []string {
	notes := r.notes
	r.notes = nil
	return notes
}

func (r *rig) usage() usage {
	u := usage{client: processTime(os.Getpid())}
	if r.watched != nil {
		u.service = processTime(r.watched.pid())
	}
	if pid := r.deps.Server.Postmaster(); pid != 0 {
		u.database = familyTime(pid)
	}
	return u
}

// site is one database with a service on it, and the store itself beside it.
type site struct {
	rig     *rig
	db      Database
	store   store.Store
	service *child
	tokens  *store.Tokens
	supply  *supply
}

// site makes a database with the queue and starts the service on it.
func (r *rig) site(ctx context.Context) (*site, error) {
	db, err := r.deps.Server.NewDatabase(ctx)
	if err != nil {
		return nil, err
	}
	r.later(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), stopPatience)
		defer cancel()
		return db.Drop(ctx)
	})
	st, end, err := r.deps.OpenStore(ctx, db.URL())
	if err != nil {
		return nil, err
	}
	r.later(func() error { end(); return nil })
	if err := st.EnsureQueues(ctx, []string{queueName}); err != nil {
		return nil, err
	}
	key, err := st.TokenKey(ctx)
	if err != nil {
		return nil, err
	}
	// The URL may hold a password, which a command line would show to everybody.
	service, err := startChild(ctx, r.deps.Binary, []string{"serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"},
		[]string{"LEASEHOLD_DATABASE_URL=" + db.URL()})
	if err != nil {
		return nil, err
	}
	r.later(service.stop)
	r.watched = service
	return &site{
		rig: r, db: db, store: st, service: service, tokens: store.NewTokens(key),
		supply: &supply{rig: r, db: db, payload: noopPayload, spare: r.plan.Spare, rate: firstRate},
	}, nil
}

// clients opens connections to the service of a site.
func (s *site) clients(connections int) (*clients, error) { return s.rig.dial(s.service, connections) }

// noop starts a server whose calls do nothing and opens connections to it.
func (r *rig) noop(ctx context.Context, connections int) (*clients, error) {
	c, err := startChild(ctx, r.deps.Binary, []string{"bench", "noop"}, nil)
	if err != nil {
		return nil, err
	}
	r.later(c.stop)
	return r.dial(c, connections)
}

// clients are connections to one server, over which callers are spread.
type clients struct {
	leases []pb.LeaseServiceClient
	jobs   []pb.JobServiceClient
}

func (r *rig) dial(c *child, connections int) (*clients, error) {
	out := &clients{}
	for range connections {
		conn, err := grpc.NewClient(c.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return nil, err
		}
		r.later(conn.Close)
		out.leases = append(out.leases, pb.NewLeaseServiceClient(conn))
		out.jobs = append(out.jobs, pb.NewJobServiceClient(conn))
	}
	return out, nil
}

func (c *clients) lease(caller int) pb.LeaseServiceClient { return c.leases[caller%len(c.leases)] }
func (c *clients) job(caller int) pb.JobServiceClient     { return c.jobs[caller%len(c.jobs)] }

// connectionsFor is over how many connections callers are spread: a process of workers has
// one, and a hundred workers.
func connectionsFor(callers int) int { return max(1, min(callers/100, 20)) }

// pause waits unless ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
