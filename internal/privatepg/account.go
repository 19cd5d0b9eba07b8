package privatepg

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// account is the user who runs the server. The zero value is this process's own.
type account struct {
	// name is empty for this process's own user.
	name     string
	uid, gid uint32
}

// chooseAccount returns this process's own user, unless that is root. For root
// it is the owner of existing data, because PostgreSQL opens no other's data.
func chooseAccount(pgdata string) (account, error) {
	if os.Geteuid() != 0 {
		return account{}, nil
	}
	if info, err := os.Stat(pgdata); err == nil {
		if owner, ok := info.Sys().(*syscall.Stat_t); ok && owner.Uid != 0 {
			return account{name: userName(owner.Uid), uid: owner.Uid, gid: owner.Gid}, nil
		}
	}
	for _, name := range []string{"postgres", "nobody"} {
		found, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.ParseUint(found.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(found.Gid, 10, 32)
		if err := errors.Join(uidErr, gidErr); err != nil {
			return account{}, fmt.Errorf("ids of the user %s: %w", name, err)
		}
		return account{name: name, uid: uint32(uid), gid: uint32(gid)}, nil
	}
	return account{}, errors.New("PostgreSQL refuses to run as root, and there is no user postgres or nobody to run it")
}

func userName(uid uint32) string {
	id := strconv.FormatUint(uint64(uid), 10)
	if found, err := user.LookupId(id); err == nil {
		return found.Username
	}
	return id
}

func (a account) foreign() bool { return a.name != "" }

// own gives a file or folder that this package made to the account.
func (a account) own(path string) error {
	if !a.foreign() {
		return nil
	}
	return os.Chown(path, int(a.uid), int(a.gid))
}

// credential is for SysProcAttr: nil leaves the child this process's own user.
func (a account) credential() *syscall.Credential {
	if !a.foreign() {
		return nil
	}
	return &syscall.Credential{Uid: a.uid, Gid: a.gid}
}

// folderMode is for folders on the way to the account's own: it needs to pass
// through them, not to see what else is there.
func (a account) folderMode() os.FileMode {
	if a.foreign() {
		return 0o711
	}
	return 0o700
}

// closedFolder returns the topmost folder of the path that the account may not
// pass through, or "". It judges by the mode bits.
func (a account) closedFolder(path string) (string, error) {
	if !a.foreign() {
		return "", nil
	}
	if parent := filepath.Dir(path); parent != path {
		if closed, err := a.closedFolder(parent); closed != "" || err != nil {
			return closed, err
		}
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	passable := info.Mode()&0o001 != 0
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		switch {
		case stat.Uid == a.uid:
			passable = info.Mode()&0o100 != 0
		case stat.Gid == a.gid:
			passable = info.Mode()&0o010 != 0
		}
	}
	if passable {
		return "", nil
	}
	return path, nil
}
