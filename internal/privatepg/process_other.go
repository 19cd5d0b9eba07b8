//go:build unix && !linux

package privatepg

import (
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// sysProcAttr of the postmaster. Its own process group, so that Ctrl-C on the
// terminal reaches only us, who stop the server after its last user. There is
// no death signal here: see the package comment.
func sysProcAttr(who account) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: who.credential(), Setpgid: true}
}

func childrenOf(parent int) ([]int, error) {
	out, err := exec.Command("ps", "-A", "-o", "pid=,ppid=").Output()
	if err != nil {
		return nil, err
	}
	var children []int
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) != 2 || fields[1] != strconv.Itoa(parent) {
			continue
		}
		if pid, err := strconv.Atoi(fields[0]); err == nil {
			children = append(children, pid)
		}
	}
	return children, nil
}

// stateOf is the state letter of a process, or gone.
func stateOf(pid int) byte {
	state := ps(pid, "state=")
	if state == "" || state[0] == 'Z' {
		return gone
	}
	return state[0]
}

func isPostmasterOf(pid int, _ string) bool {
	return filepath.Base(ps(pid, "comm=")) == "postgres" && stateOf(pid) != gone
}

func ps(pid int, column string) string {
	out, err := exec.Command("ps", "-o", column, "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}
