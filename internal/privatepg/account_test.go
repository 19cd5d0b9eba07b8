package privatepg

import (
	"errors"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// alsoAsUser are the tests whose outcome depends on who runs them.
const alsoAsUser = "Ephemeral|Kept|Freeze|SIGKILL|InUse|Stale|ClosedFolder|AsOrdinaryUser"

// Root runs those tests once more, in a process of an ordinary user. Where an
// ordinary user runs the tests, they all are such a run already.
func TestAsOrdinaryUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		assertRunsAsSelf(t)
		return
	}
	who, err := chooseAccount("")
	noError(t, err)
	dir := folder(t)
	binary := filepath.Join(dir, "privatepg.test")
	copyFile(t, os.Args[0], binary)
	tmp := filepath.Join(dir, "tmp")
	noError(t, os.Mkdir(tmp, 0o755))
	noError(t, who.own(tmp))

	cmd := exec.CommandContext(t.Context(), binary, "-test.timeout=5m", "-test.run="+alsoAsUser)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp, "HOME="+tmp)
	cmd.SysProcAttr = sysProcAttr(who)
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("as %s: %v\n%s", who.name, err, output)
	}
}

// assertRunsAsSelf: no account but our own, and a folder that only we can enter
// is good enough.
func assertRunsAsSelf(t *testing.T) {
	t.Helper()
	server := start(t, Config{DataDir: filepath.Join(t.TempDir(), "dev")})
	info, err := os.Stat(server.DataDir())
	noError(t, err)
	if owner := info.Sys().(*syscall.Stat_t).Uid; int(owner) != os.Geteuid() || server.account.foreign() {
		t.Errorf("the data belongs to %d, we are %d", owner, os.Geteuid())
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	content, err := os.ReadFile(from)
	noError(t, err)
	noError(t, os.WriteFile(to, content, 0o755))
}

// The account's way to the data, judged for the account whoever runs the test.
func TestClosedFolderNamesTheTopmost(t *testing.T) {
	t.Parallel()
	nobody, err := user.Lookup("nobody")
	noError(t, err)
	who := account{name: nobody.Username, uid: 65534, gid: 65534}
	top := folder(t)
	closed := filepath.Join(top, "closed")
	below := filepath.Join(closed, "open", "dev")
	noError(t, os.MkdirAll(below, 0o755))
	noError(t, os.Chmod(closed, 0o700))

	got, err := who.closedFolder(below)
	noError(t, err)
	if got != closed {
		t.Errorf("got %q, want %q", got, closed)
	}
	noError(t, os.Chmod(closed, 0o701))
	got, err = who.closedFolder(below)
	noError(t, err)
	if got != "" {
		t.Errorf("%q is open", got)
	}
	own, err := account{}.closedFolder("/")
	noError(t, err)
	if own != "" {
		t.Errorf("our own way is not judged, got %q", own)
	}
}

// A folder in a closed one: root cannot use it, because PostgreSQL refuses root;
// its owner can.
func TestDataDirectoryInAClosedFolder(t *testing.T) {
	t.Parallel()
	closed := filepath.Join(folder(t), "closed")
	noError(t, os.Mkdir(closed, 0o700))
	server, err := Start(t.Context(), Config{DataDir: filepath.Join(closed, "dev")})
	if os.Geteuid() != 0 {
		noError(t, err)
		noError(t, server.Stop(t.Context()))
		return
	}
	var shut *NotTraversableError
	if !errors.As(err, &shut) || shut.Folder != closed {
		t.Fatalf("got %v, want that %s is closed", err, closed)
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("more than a line: %v", err)
	}
}

// Data that an ordinary user began goes on as that user's when root starts it.
func TestExistingDataKeepsItsOwner(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(folder(t), "dev")
	server := start(t, Config{DataDir: dir})
	info, err := os.Stat(server.DataDir())
	noError(t, err)
	owner := info.Sys().(*syscall.Stat_t).Uid
	if owner == 0 {
		t.Fatal("PostgreSQL's data belongs to root")
	}
	chosen, err := chooseAccount(server.DataDir())
	noError(t, err)
	if chosen != server.account {
		t.Errorf("the second start would be as %+v, the first was as %+v", chosen, server.account)
	}
	if base, err := os.Stat(dir); err != nil || int(base.Sys().(*syscall.Stat_t).Uid) != os.Geteuid() {
		t.Errorf("a folder that need not change its owner has: %v", err)
	}
}
