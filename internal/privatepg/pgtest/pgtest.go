// Package pgtest gives tests a real PostgreSQL. One ephemeral server serves a
// test process; each test gets a database of its own, cloned from a template
// that is migrated once. Where no PostgreSQL is installed tests fail: a test
// that skips has tested nothing.
//
// A test package uses it with
//
//	func TestMain(m *testing.M) { os.Exit(pgtest.Run(m)) }
package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/leasehold/leasehold/internal/privatepg"
)

// stopPatience bounds the end of a server.
const stopPatience = time.Minute

// shared is the server of this test process, started by the first who asks.
var shared sharedServer

type sharedServer struct {
	once   sync.Once
	server *privatepg.Server
	err    error
}

func (s *sharedServer) get() (*privatepg.Server, error) {
	s.once.Do(func() {
		s.server, s.err = privatepg.Start(context.Background(), privatepg.Config{
			Ephemeral: true,
			// Many tests run side by side, each with a pool or several.
			ExtraSettings: map[string]string{"max_connections": "500"},
		})
	})
	return s.server, s.err
}

// stop ends the server, if there is one, and lets nobody start it any more.
func (s *sharedServer) stop() error {
	s.once.Do(func() { s.err = errors.New("the test process is ending") })
	if s.server == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopPatience)
	defer cancel()
	return s.server.Stop(ctx)
}

// Run runs the tests, stops the shared server and looks for goroutines that the
// tests left behind. It returns the code to exit with.
func Run(m *testing.M) int {
	code := m.Run()
	if err := shared.stop(); err != nil {
		fmt.Fprintln(os.Stderr, "pgtest: stopping PostgreSQL:", err)
		code = max(code, 1)
	}
	if code != 0 {
		return code
	}
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, "pgtest: the tests left goroutines behind:", err)
		return 1
	}
	return 0
}

// IgnoreShared is for goleak within one test: the goroutine that waits for the
// shared server's process outlives the test on purpose.
func IgnoreShared() goleak.Option {
	return goleak.IgnoreAnyFunction("github.com/leasehold/leasehold/internal/privatepg.(*process).run")
}

// Shared returns the server of this test process. Tests must neither stop nor
// freeze it: use Server for that.
func Shared(t testing.TB) *privatepg.Server {
	t.Helper()
	server, err := shared.get()
	if err != nil {
		t.Fatalf("this test needs PostgreSQL: %v", err)
	}
	return server
}

// Server starts an ephemeral server for this test alone, which may stop, kill,
// freeze and restart it; it is gone after the test. It takes a second or two:
// use Database where the shared server will do.
func Server(t testing.TB) *privatepg.Server {
	t.Helper()
	return ServerWith(t, privatepg.Config{Ephemeral: true})
}

// ServerWith is Server with another configuration.
func ServerWith(t testing.TB, cfg privatepg.Config) *privatepg.Server {
	t.Helper()
	server, err := privatepg.Start(t.Context(), cfg)
	if err != nil {
		t.Fatalf("this test needs a PostgreSQL of its own: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), stopPatience)
		defer cancel()
		if err := server.Stop(ctx); err != nil {
			t.Errorf("stopping PostgreSQL: %v", err)
		}
	})
	return server
}
