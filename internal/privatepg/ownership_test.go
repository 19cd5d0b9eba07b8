package privatepg

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestServerDiesWithAParentKilledBySIGKILL(t *testing.T) {
	t.Parallel()
	for name, frozen := range map[string]bool{"running": false, "frozen": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(folder(t), "dev")
			o := startOwner(t, dir)
			children, err := childrenOf(o.PID)
			noError(t, err)
			_, err = connect(t, o.URL).Exec(t.Context(), "CREATE TABLE kept AS SELECT 'safe' AS what")
			noError(t, err)
			if frozen {
				o.freeze(t)
			}

			o.kill9()

			// At once, as somebody would who starts again after a crash: the start
			// itself waits until the old server is gone.
			server := start(t, Config{DataDir: dir})
			for _, pid := range append(children, o.PID) {
				eventually(t, "process "+strconv.Itoa(pid)+" of the server ends", func() bool { return stateOf(pid) == gone })
			}
			if got := text(t, server.URL("postgres"), "SELECT what FROM kept"); got != "safe" {
				t.Errorf("got %q", got)
			}
			if _, err := os.Stat(o.Runtime); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the runtime folder of the killed process is still there: %v", err)
			}
		})
	}
}

func TestAbandonedEphemeralDataIsRemovedByTheNextStart(t *testing.T) {
	t.Parallel()
	living := startOwner(t, childEphemeral)
	dead := startOwner(t, childEphemeral)
	dead.kill9()
	eventually(t, "the server of the killed process ends", func() bool { return stateOf(dead.PID) == gone })

	start(t, Config{Ephemeral: true})

	if _, err := os.Stat(dead.Runtime); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the data of the killed process is still there: %v", err)
	}
	if got := text(t, living.URL, "SELECT 'untouched'"); got != "untouched" {
		t.Errorf("got %q", got)
	}
	noError(t, living.input.Close())
	noError(t, living.cmd.Wait())
}

func TestDataDirectoryInUseNamesTheProcess(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(folder(t), "dev")
	o := startOwner(t, dir)
	assertInUse(t, dir, o.cmd.Process.Pid)
	noError(t, o.input.Close())
	noError(t, o.cmd.Wait())

	start(t, Config{DataDir: dir})
	assertInUse(t, dir, os.Getpid())
}

// A postmaster that somebody started on our data without us holds no lock.
func TestDataDirectoryInUseByABarePostmaster(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(folder(t), "dev")
	server := start(t, Config{DataDir: dir})
	// The socket's folder must outlive the server that made it.
	sockets := filepath.Join(folder(t), "s")
	noError(t, os.Mkdir(sockets, 0o700))
	noError(t, server.account.own(sockets))
	noError(t, server.Stop(t.Context()))

	cfg := server.cfg
	cfg.SocketOnly = true
	cmd := command(server.bin, "postgres", cfg.serverArgs(server.DataDir(), sockets, server.port), server.account)
	bare, err := startProcess(cmd)
	noError(t, err)
	t.Cleanup(func() { noError(t, bare.destroy()) })
	eventually(t, "the bare postmaster has the data", func() bool { return livePostmaster(server.DataDir()) == bare.pid })

	assertInUse(t, dir, bare.pid)
	if !bare.running() {
		t.Error("the other server was ended")
	}
}

func assertInUse(t *testing.T, dir string, pid int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := Start(ctx, Config{DataDir: dir})
	var inUse *InUseError
	if !errors.As(err, &inUse) || inUse.PID != pid || inUse.DataDir != dir {
		t.Fatalf("got %v, want that process %d has it", err, pid)
	}
	if want := "in use by process " + strconv.Itoa(pid); !strings.Contains(err.Error(), want) {
		t.Errorf("%q is not in: %v", want, err)
	}
}

func TestStalePIDFileDoesNotHinderTheStart(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(folder(t), "dev")
	server := start(t, Config{DataDir: dir})
	pidFile := filepath.Join(server.DataDir(), "postmaster.pid")

	t.Run("process is gone", func(t *testing.T) {
		noError(t, server.proc.destroy())
		if _, err := os.Stat(pidFile); err != nil {
			t.Fatalf("a killed postmaster leaves its file: %v", err)
		}
		noError(t, server.Restart(t.Context()))
	})
	t.Run("id went to another process", func(t *testing.T) {
		// As the same account, which is what PostgreSQL takes for a postmaster.
		sleep := exec.Command("sleep", "600")
		sleep.SysProcAttr = &syscall.SysProcAttr{Credential: server.account.credential()}
		noError(t, sleep.Start())
		t.Cleanup(func() {
			noError(t, sleep.Process.Kill())
			_ = sleep.Wait()
		})
		old := server.proc.pid
		noError(t, server.proc.destroy())
		content, err := os.ReadFile(pidFile)
		noError(t, err)
		stale := strings.Replace(string(content), strconv.Itoa(old), strconv.Itoa(sleep.Process.Pid), 1)
		noError(t, os.WriteFile(pidFile, []byte(stale), 0o600))
		noError(t, server.Restart(t.Context()))
		if stateOf(sleep.Process.Pid) == gone {
			t.Error("the innocent process was ended")
		}
	})
}

func TestDataOfAnotherVersion(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	noError(t, os.Mkdir(filepath.Join(dir, "pgdata"), 0o700))
	noError(t, os.WriteFile(filepath.Join(dir, "pgdata", "PG_VERSION"), []byte("9\n"), 0o600))
	_, err := Start(t.Context(), Config{DataDir: dir})
	var version *VersionError
	if !errors.As(err, &version) || version.DataMajor != 9 || len(version.Installed) == 0 {
		t.Fatalf("got %v", err)
	}
}

func TestDirectoryOfAnotherServerIsRefused(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	noError(t, os.WriteFile(filepath.Join(dir, "PG_VERSION"), []byte("15\n"), 0o600))
	_, err := Start(t.Context(), Config{DataDir: dir})
	var foreign *ForeignDataError
	if !errors.As(err, &foreign) {
		t.Fatalf("got %v", err)
	}
	entries, err := os.ReadDir(dir)
	noError(t, err)
	if len(entries) != 1 {
		t.Errorf("something was written there: %v", entries)
	}
}

func TestLostPassword(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(folder(t), "dev")
	server := start(t, Config{DataDir: dir})
	noError(t, server.Stop(t.Context()))

	password := filepath.Join(dir, "password")
	noError(t, os.WriteFile(password, []byte("another\n"), 0o600))
	_, err := Start(t.Context(), Config{DataDir: dir})
	if err == nil || !strings.Contains(err.Error(), password+" does not fit") {
		t.Errorf("with another password: %v", err)
	}
	noError(t, os.Remove(password))
	_, err = Start(t.Context(), Config{DataDir: dir})
	var missing *PasswordMissingError
	if !errors.As(err, &missing) || missing.File != password {
		t.Errorf("without a password: %v", err)
	}
}
