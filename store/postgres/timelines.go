package postgres

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// timelines keeps this replica from an old primary that comes back. After a standby was promoted
// the old primary takes writes again when somebody starts it, target_session_attrs lets both
// pass, and jobs would be stored and leases handed out on two servers of which one will be thrown
// away. A promotion raises the number of the timeline: who has seen the higher one never goes
// back to a lower one of the same cluster. It is a net and no fence: a replica that has not
// reached the new primary yet, or that was started since, knows nothing of it.
type timelines struct {
	log *slog.Logger
	// left is called when a higher timeline is seen: sessions that are open lead to the old one.
	left func()

	mu      sync.Mutex
	highest map[string]uint64 // by the identifier of the cluster
	told    time.Time         // when a stale server was last logged
}

// tellAgain is between two lines about a stale server: while nothing else is there, every call
// meets it.
const tellAgain = 10 * time.Second

func newTimelines(log *slog.Logger) *timelines {
	return &timelines{log: log, left: func() {}, highest: map[string]uint64{}}
}

// staleError refuses a server that another has been promoted over.
type staleError struct {
	Cluster            string
	Timeline, Promoted uint64
}

func (e *staleError) Error() string {
	return fmt.Sprintf("the server is on timeline %d of the cluster %s, and a standby was promoted to timeline %d: it is an old primary and must not be written to", e.Timeline, e.Cluster, e.Promoted)
}

// sqlTimeline names the cluster and the timeline that is written now. What the control file says
// of the timeline is that of the last checkpoint, which a fresh primary has not made yet.
const sqlTimeline = `SELECT s.system_identifier, left(pg_walfile_name(pg_current_wal_lsn()), 8) FROM pg_control_system() s`

// guard makes every new session of cc pass the check, after those that it has.
func (t *timelines) guard(cc *pgx.ConnConfig) {
	before := cc.ValidateConnect
	cc.ValidateConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		if before != nil {
			if err := before(ctx, conn); err != nil {
				return err
			}
		}
		return t.check(ctx, conn)
	}
}

// check refuses a stale server. One that cannot tell, as a standby or a server that is only
// compatible, passes: the check must not keep anybody from a database that works.
func (t *timelines) check(ctx context.Context, conn *pgconn.PgConn) error {
	results, err := conn.Exec(ctx, sqlTimeline).ReadAll()
	if err != nil || len(results) != 1 || len(results[0].Rows) != 1 {
		if err != nil && conn.IsClosed() {
			return err
		}
		return nil
	}
	row := results[0].Rows[0]
	timeline, err := strconv.ParseUint(string(row[1]), 16, 64)
	if err != nil {
		return nil //nolint:nilerr // another form of the name: it cannot tell
	}
	return t.see(string(row[0]), timeline)
}

// see notes a timeline, and refuses one that is below what was seen.
func (t *timelines) see(cluster string, timeline uint64) error {
	t.mu.Lock()
	highest, known := t.highest[cluster]
	t.highest[cluster] = max(highest, timeline)
	tell := timeline < highest && time.Since(t.told) > tellAgain
	if tell {
		t.told = time.Now()
	}
	t.mu.Unlock()
	switch {
	case timeline < highest:
		err := &staleError{Cluster: cluster, Timeline: timeline, Promoted: highest}
		if tell {
			t.log.Error("an old primary takes writes: fence it", "error", err)
		}
		return err
	case known && timeline > highest:
		t.log.Warn("another server was promoted", "timeline", timeline, "before", highest)
		t.left()
	}
	return nil
}
