package postgres_test

import (
	"context"
	"net/url"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasehold/leasehold/internal/faultproxy"
	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
	"github.com/leasehold/leasehold/store/postgres"
)

// firewall stands between a Store and the server, and can forget the connections that it
// knows: what is sent on them is swallowed, and nobody is told. New ones take another way.
type firewall struct{ old, fresh *faultproxy.Proxy }

// newFirewall answers a URL that leads through it.
func newFirewall(t *testing.T, direct string) (f *firewall, through string) {
	t.Helper()
	u, err := url.Parse(direct)
	if err != nil {
		t.Fatal(err)
	}
	f = &firewall{}
	for _, p := range []**faultproxy.Proxy{&f.old, &f.fresh} {
		if *p, err = faultproxy.New(u.Host); err != nil {
			t.Fatal(err)
		}
		t.Cleanup((*p).Close)
	}
	u.Host = f.old.Addr() + "," + f.fresh.Addr()
	return f, u.String()
}

// forget forgets all connections, or lets them end, which they cannot else.
func (f *firewall) forget(on bool) {
	f.old.Refuse(on)
	f.old.Swallow(faultproxy.ToServer, on)
	f.old.Swallow(faultproxy.ToClient, on)
}

// idleConnections makes the Store's pool as large as it gets, with nothing to do.
func idleConnections(t *testing.T, s *postgres.Store) {
	t.Helper()
	var taken []*pgxpool.Conn
	for range int(s.Pool().Stat().MaxConns()) {
		conn, err := s.Pool().Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		taken = append(taken, conn)
	}
	for _, conn := range taken {
		conn.Release()
	}
}

// TestR35AForgottenConnectionGivesAwayTheOthers: what a dead connection costs, a Store pays
// once and not for each of its pool, because leases run out meanwhile.
func TestR35AForgottenConnectionGivesAwayTheOthers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name           string
		idle, deadline time.Duration
		fail           int // heartbeats that may fail before one is written
	}{
		{"used_a_moment_ago", 0, 3 * time.Second, 1},
		// Such are looked at before they are used.
		{"idle_for_long", 1200 * time.Millisecond, 10 * time.Second, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			direct := pgtest.Database(t, migrate)
			wall, through := newFirewall(t, direct)
			h := newHarnessOver(t, direct, openStore(t, through))
			refs := h.leases(t, 1)
			idleConnections(t, h.store)
			since := time.Now()
			await(t, "the connections are idle", func() bool { return time.Since(since) >= c.idle })
			wall.forget(true)
			defer wall.forget(false)
			failed := 0
			await(t, "heartbeats are written again", func() bool {
				ctx, cancel := context.WithTimeout(t.Context(), c.deadline)
				defer cancel()
				out, err := h.store.Heartbeat(ctx, beatsOf(refs...))
				if err == nil && out[0].Err == nil {
					return true
				}
				failed++
				return false
			})
			if failed > c.fail {
				t.Errorf("%d heartbeats failed before one was written, want at most %d", failed, c.fail)
			}
		})
	}
}
