package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A network may swallow what is sent on connections that were good before, as a firewall does
// that has forgotten them, while new ones work. Nobody is told. One connection on which that
// is found out is one of many: tried one after the other, each would cost a caller seconds,
// and leases would run out meanwhile. So the first gives all of them away.

const (
	// idleSuspect is how long a connection may be idle and be used without a look at it.
	idleSuspect = time.Second
	// idleLook bounds that look.
	idleLook = time.Second
)

// swallowed tells that no answer came, and none that was merely slow: statements end by the
// server's own timeout, well before we give up on the connection.
func swallowed(err error) bool { return pgconn.Timeout(err) }

// lookAtIdle makes the pool look at connections that were idle before it hands them out, and
// give away all of them where one is dead without a word.
func lookAtIdle(pc *pgxpool.Config, reset func()) {
	pc.ShouldPing = func(ctx context.Context, p pgxpool.ShouldPingParams) bool {
		if p.IdleDuration <= idleSuspect {
			return false
		}
		limited, cancel := context.WithTimeout(ctx, idleLook)
		defer cancel()
		err := p.Conn.Ping(limited)
		if swallowed(err) && ctx.Err() == nil {
			reset()
		}
		return err != nil // the pool's own ping fails as well, and it drops the connection
	}
}
