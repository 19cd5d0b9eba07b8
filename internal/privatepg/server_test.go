package privatepg

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

func TestEphemeralServerIsReachedBothWaysAndLeavesNothing(t *testing.T) {
	t.Parallel()
	server := start(t, Config{Ephemeral: true, ExtraSettings: map[string]string{"max_connections": "77"}})

	for setting, want := range map[string]string{
		"fsync": "off", "full_page_writes": "off", "max_connections": "77",
		"TimeZone": "UTC", "server_encoding": "UTF8", "listen_addresses": "127.0.0.1",
	} {
		if got := text(t, server.URL("postgres"), "SELECT current_setting('"+setting+"')"); got != want {
			t.Errorf("%s = %q, want %q", setting, got, want)
		}
	}
	const locale = "SELECT datcollate || ' ' || datctype FROM pg_database WHERE datname = current_database()"
	if got := text(t, server.SocketURL("template1"), locale); got != "C C" {
		t.Errorf("locale = %q", got)
	}

	noError(t, server.Stop(t.Context()))
	if _, err := os.Stat(server.layout.runtime); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the runtime folder is still there: %v", err)
	}
	if _, err := tryConnect(t, server.URL("postgres")); err == nil {
		t.Error("the server still answers")
	}
	noError(t, server.Stop(t.Context()))
	var down *NotRunningError
	if err := server.Restart(t.Context()); !errors.As(err, &down) {
		t.Errorf("restart after stop: %v", err)
	}
}

func TestNobodyGetsInWithoutThePassword(t *testing.T) {
	t.Parallel()
	server := start(t, Config{Ephemeral: true})
	for _, url := range []string{server.URL("postgres"), server.SocketURL("postgres")} {
		for _, wrong := range []string{"wrong", ""} {
			_, err := tryConnect(t, strings.Replace(url, server.password, wrong, 1))
			var refusal *pgconn.PgError
			if wrong != "" && (!errors.As(err, &refusal) || refusal.Code != sqlstateInvalidPassword) || err == nil {
				t.Errorf("password %q at %s: %v", wrong, url, err)
			}
		}
	}
	info, err := os.Stat(server.layout.sockets())
	noError(t, err)
	if info.Mode().Perm() != 0o700 {
		t.Errorf("the socket's folder has mode %v", info.Mode())
	}
}

func TestKeptDataSurvivesAndIsDurable(t *testing.T) {
	t.Parallel()
	cfg := Config{DataDir: filepath.Join(folder(t), "missing", "dev")}
	first := start(t, cfg)
	execute(t, first, "CREATE TABLE kept AS SELECT 'still here' AS what")
	noError(t, first.Stop(t.Context()))

	second := start(t, cfg)
	if got := text(t, second.URL("postgres"), "SELECT what FROM kept"); got != "still here" {
		t.Errorf("got %q", got)
	}
	for _, setting := range []string{"fsync", "synchronous_commit", "full_page_writes"} {
		if got := text(t, second.URL("postgres"), "SELECT current_setting('"+setting+"')"); got != "on" {
			t.Errorf("%s = %s", setting, got)
		}
	}
	if first.password != second.password {
		t.Error("the password changed: URLs that people noted are void")
	}
	for _, name := range []string{"password", "postgres.log"} {
		info, err := os.Stat(filepath.Join(cfg.DataDir, name))
		noError(t, err)
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", name, info.Mode())
		}
	}
}

func TestSocketOnlyOpensNoPort(t *testing.T) {
	t.Parallel()
	server := start(t, Config{Ephemeral: true, Durable: true, SocketOnly: true})
	if got := text(t, server.URL("postgres"), "SELECT current_setting('listen_addresses')"); got != "" {
		t.Errorf("listen_addresses = %q", got)
	}
	if got := text(t, server.URL("postgres"), "SELECT current_setting('fsync')"); got != "on" {
		t.Errorf("fsync = %s on a durable server", got)
	}
	if !portFree(server.Port()) {
		t.Error("somebody listens on the port")
	}
}

func TestKillIsACrashAndRestartRecovers(t *testing.T) {
	t.Parallel()
	server := start(t, Config{Ephemeral: true})
	url := server.URL("postgres")
	// A commit that was answered survives the crash of the server, as it does with
	// a server in production: tests of faults rely on it.
	execute(t, server, "CREATE TABLE kept AS SELECT 'recovered' AS what")
	ended := server.Done()

	noError(t, server.Kill())
	<-ended
	if _, err := tryConnect(t, url); err == nil {
		t.Error("the killed server answers")
	}
	noError(t, server.Kill())

	noError(t, server.Restart(t.Context()))
	if got := text(t, url, "SELECT what FROM kept"); got != "recovered" {
		t.Errorf("got %q", got)
	}
	log, err := os.ReadFile(server.LogFile())
	noError(t, err)
	if !strings.Contains(string(log), "was not properly shut down") {
		t.Error("the kill was no crash: the server had nothing to recover")
	}
}

func TestHaltTellsClientsAndRestartKeepsThePort(t *testing.T) {
	t.Parallel()
	server := start(t, Config{Ephemeral: true})
	url := server.URL("postgres")
	conn := connect(t, url)

	noError(t, server.Halt(t.Context()))
	_, err := conn.Exec(t.Context(), "SELECT 1")
	var farewell *pgconn.PgError
	if !errors.As(err, &farewell) || farewell.Code != "57P01" {
		t.Errorf("the client heard %v, want an orderly goodbye", err)
	}
	noError(t, server.Restart(t.Context()))
	noError(t, server.Restart(t.Context()))
	if got := text(t, url, "SELECT 'back'"); got != "back" {
		t.Errorf("got %q", got)
	}
}

func TestFreezeAnswersNothingAndThawGoesOn(t *testing.T) {
	t.Parallel()
	server := start(t, Config{Ephemeral: true})
	conn := connect(t, server.URL("postgres"))
	noError(t, server.Freeze())

	children, err := childrenOf(server.proc.pid)
	noError(t, err)
	if len(children) < 2 {
		t.Fatalf("a server with %d processes is not all there", len(children))
	}
	for _, pid := range append(children, server.proc.pid) {
		if stateOf(pid) != stopped {
			t.Errorf("process %d runs", pid)
		}
	}
	answer := make(chan error, 1)
	go func() {
		_, err := conn.Exec(t.Context(), "SELECT 1")
		answer <- err
	}()
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	// The kernel takes the connection, nobody answers on it.
	if _, err := pgconn.Connect(short, server.URL("postgres")); err == nil || short.Err() == nil {
		t.Errorf("connecting to a frozen server: %v", err)
	}
	select {
	case err := <-answer:
		t.Errorf("the frozen server answered: %v", err)
	default:
	}
	noError(t, server.Thaw())
	noError(t, <-answer)
}

func TestFrozenServerStops(t *testing.T) {
	t.Parallel()
	server := start(t, Config{Ephemeral: true})
	noError(t, server.Freeze())
	noError(t, server.Halt(t.Context()))
	var down *NotRunningError
	if err := server.Freeze(); !errors.As(err, &down) {
		t.Errorf("freeze of a server that is down: %v", err)
	}
	if err := server.Thaw(); !errors.As(err, &down) {
		t.Errorf("thaw of a server that is down: %v", err)
	}
	noError(t, server.Restart(t.Context()))
	noError(t, server.Freeze())
}

func TestStopUsesForceAfterTheContext(t *testing.T) {
	t.Parallel()
	server := start(t, Config{DataDir: filepath.Join(folder(t), "dev")})
	expired, cancel := context.WithCancel(t.Context())
	cancel()
	ended := server.Done()
	noError(t, server.Stop(expired))
	<-ended
	if livePostmaster(server.DataDir()) != 0 {
		t.Error("the server still runs")
	}
}

func TestStartFailureShowsTheLogAndLeavesNothing(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	noError(t, err)
	// Not deferred: the parallel parts run after this function.
	t.Cleanup(func() { noError(t, listener.Close()) })
	taken := listener.Addr().(*net.TCPAddr).Port

	for name, c := range map[string]struct {
		cfg  Config
		want string
	}{
		"bad setting": {Config{ExtraSettings: map[string]string{"shared_buffers": "much"}}, "shared_buffers"},
		"port in use": {Config{Port: taken}, "Address already in use"},
		"never ready": {Config{StartTimeout: time.Nanosecond}, "accepts no connections"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := &layout{base: filepath.Join(folder(t), "dev")}
			c.cfg.DataDir = l.base
			_, err := Start(t.Context(), c.cfg)
			var failure *StartError
			if !errors.As(err, &failure) || failure.Step != "postgres" {
				t.Fatalf("got %v", err)
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error does not show %q: %v", c.want, err)
			}
			if pid := livePostmaster(l.pgdata()); pid != 0 {
				t.Errorf("process %d still runs", pid)
			}
			// The lock is free again and the data is whole.
			start(t, Config{DataDir: l.base})
		})
	}
}

func TestStartEndsWithItsContext(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(folder(t), "dev")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Start(ctx, Config{DataDir: dir})
	var failure *StartError
	if !errors.As(err, &failure) || failure.Step != "initdb" || !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	// What the killed initdb left behind is not taken for data.
	start(t, Config{DataDir: dir})
}

func TestConfigNamesAllFaultsAtOnce(t *testing.T) {
	t.Parallel()
	_, err := Start(t.Context(), Config{
		Port: 70000, StartTimeout: -time.Second, ExtraSettings: map[string]string{"port": "1", "data_directory": "/"},
	})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{"data directory", "70000", "-1s", "setting port", "setting data_directory"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not named in: %v", want, err)
		}
	}
	if err := (Config{DataDir: "x", Ephemeral: true}).Validate(); err == nil {
		t.Error("both a data directory and ephemeral: accepted")
	}
}
