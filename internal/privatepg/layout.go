package privatepg

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

const (
	runtimePrefix = "leasehold-pg-"
	lockName      = "lock"
	// maxSocketPath: the kernel's bound is 108 bytes on Linux and 104 on macOS.
	maxSocketPath = 99
)

// layout is where the files of one server are.
type layout struct {
	// base holds pgdata, password, lock and the log.
	base string
	// runtime is the short temporary folder; the base too, of an ephemeral server.
	runtime string
	// locks are held for the life of the server.
	locks []*os.File
}

func (l *layout) pgdata() string   { return filepath.Join(l.base, "pgdata") }
func (l *layout) password() string { return filepath.Join(l.base, "password") }
func (l *layout) log() string      { return filepath.Join(l.base, "postgres.log") }
func (l *layout) sockets() string  { return filepath.Join(l.runtime, "s") }

// newLayout makes and locks the folders.
func newLayout(cfg Config) (*layout, account, error) {
	l := &layout{base: cfg.DataDir}
	who, err := l.openBase()
	if err == nil {
		err = l.makeRuntime(who)
	}
	if err == nil && l.base == "" {
		l.base = l.runtime
	}
	if err == nil {
		err = l.checkWay(who)
	}
	if err != nil {
		return nil, account{}, errors.Join(err, l.release())
	}
	return l, who, nil
}

// openBase makes the folder of a kept server ready and locks it.
func (l *layout) openBase() (account, error) {
	if l.base == "" {
		return chooseAccount("")
	}
	base, err := filepath.Abs(l.base)
	if err != nil {
		return account{}, err
	}
	l.base = base
	if _, err := os.Stat(filepath.Join(base, "PG_VERSION")); err == nil {
		return account{}, &ForeignDataError{DataDir: base}
	}
	who, err := chooseAccount(l.pgdata())
	if err != nil {
		return account{}, err
	}
	if err := os.MkdirAll(filepath.Dir(base), 0o755); err != nil {
		return account{}, err
	}
	if err := os.Mkdir(base, who.folderMode()); err != nil && !errors.Is(err, fs.ErrExist) {
		return account{}, err
	}
	lock, err := takeLock(filepath.Join(base, lockName))
	if err != nil {
		return account{}, err
	}
	l.locks = append(l.locks, lock)
	return who, nil
}

// makeRuntime makes the short folder and in it the one for the socket.
func (l *layout) makeRuntime(who account) error {
	parent, err := runtimeParent(who)
	if err != nil {
		return err
	}
	sweepAbandoned(parent)
	l.runtime, err = os.MkdirTemp(parent, runtimePrefix)
	if err != nil {
		return err
	}
	if err := os.Chmod(l.runtime, who.folderMode()); err != nil {
		return err
	}
	// Locked under another name first: a sweep in another process must never
	// find the lock of a living server open.
	fresh := filepath.Join(l.runtime, lockName+".new")
	lock, err := takeLock(fresh)
	if err != nil {
		return err
	}
	l.locks = append(l.locks, lock)
	if err := os.Rename(fresh, filepath.Join(l.runtime, lockName)); err != nil {
		return err
	}
	if err := os.Mkdir(l.sockets(), 0o700); err != nil {
		return err
	}
	return who.own(l.sockets())
}

// runtimeParent is the temporary directory, or /tmp where the account cannot
// get into that or its name is too long for a socket below it.
func runtimeParent(who account) (string, error) {
	parent, err := filepath.Abs(os.TempDir())
	if err != nil {
		return "", err
	}
	longest := filepath.Join(parent, runtimePrefix+"4294967295", "s", ".s.PGSQL.65535")
	closed, err := who.closedFolder(parent)
	if err != nil {
		return "", err
	}
	if closed != "" || len(longest) > maxSocketPath {
		return "/tmp", nil
	}
	return parent, nil
}

// sweepAbandoned removes the runtime folders of servers whose owner was killed:
// nobody else would, and an ephemeral one holds tens of megabytes. Failures are
// left to the next sweep.
func sweepAbandoned(parent string) {
	// Glob fails on a malformed pattern only.
	candidates, _ := filepath.Glob(filepath.Join(parent, runtimePrefix+"*"))
	for _, dir := range candidates {
		info, err := os.Lstat(dir)
		if err != nil || !info.IsDir() {
			continue
		}
		if stat, ok := info.Sys().(*syscall.Stat_t); !ok || int(stat.Uid) != os.Geteuid() {
			continue
		}
		sweepOne(dir)
	}
}

func sweepOne(dir string) {
	path := filepath.Join(dir, lockName)
	// A folder without a lock is still being made.
	if _, err := os.Lstat(path); err != nil {
		return
	}
	lock, err := takeLock(path)
	if err != nil {
		return
	}
	defer dropLock(lock)
	if livePostmaster(filepath.Join(dir, "pgdata")) != 0 {
		return
	}
	_ = os.RemoveAll(dir)
}

// checkWay fails with *NotTraversableError before PostgreSQL fails with a text
// that names neither the folder nor the remedy.
func (l *layout) checkWay(who account) error {
	closed, err := who.closedFolder(l.base)
	if err != nil {
		return fmt.Errorf("data directory %s: %w", l.base, err)
	}
	if closed != "" {
		return &NotTraversableError{DataDir: l.base, Folder: closed, Account: who.name}
	}
	return nil
}

// release removes the runtime folder, and with it the data of an ephemeral
// server, and gives the locks back. It may be called twice.
func (l *layout) release() error {
	var err error
	if l.runtime != "" {
		err = os.RemoveAll(l.runtime)
	}
	for _, lock := range l.locks {
		dropLock(lock)
	}
	l.locks = nil
	return err
}
