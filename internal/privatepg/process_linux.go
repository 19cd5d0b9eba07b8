package privatepg

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// sysProcAttr of the postmaster. Its own process group, so that Ctrl-C on the
// terminal reaches only us, who stop the server after its last user; and so
// that the kernel wakes a frozen server when we die (it continues the stopped
// members of a process group that becomes orphaned).
func sysProcAttr(who account) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: who.credential(), Setpgid: true, Pdeathsig: syscall.SIGQUIT}
}

// procStat are the fields of /proc/PID/stat that matter here.
type procStat struct {
	state byte
	ppid  int
}

func readStat(pid int) (procStat, bool) {
	content, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return procStat{}, false
	}
	// The command's name stands in parentheses and may contain some itself.
	fields := strings.Fields(string(content[strings.LastIndexByte(string(content), ')')+1:]))
	if len(fields) < 2 {
		return procStat{}, false
	}
	ppid, err := strconv.Atoi(fields[1])
	if err != nil {
		return procStat{}, false
	}
	return procStat{state: fields[0][0], ppid: ppid}, true
}

func childrenOf(parent int) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var children []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if stat, ok := readStat(pid); ok && stat.ppid == parent && stat.state != 'Z' {
			children = append(children, pid)
		}
	}
	return children, nil
}

// stateOf is the state letter of a process, or gone.
func stateOf(pid int) byte {
	stat, ok := readStat(pid)
	if !ok || stat.state == 'Z' || stat.state == 'X' {
		return gone
	}
	return stat.state
}

func isPostmasterOf(pid int, pgdata string) bool {
	if stateOf(pid) == gone {
		return false
	}
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	if cwd, err := os.Readlink(filepath.Join(proc, "cwd")); err == nil {
		real, err := filepath.EvalSymlinks(pgdata)
		return err == nil && cwd == real
	}
	// Another user's process hides its folder but not its name.
	name, err := os.ReadFile(filepath.Join(proc, "comm"))
	return err == nil && strings.TrimSpace(string(name)) == "postgres"
}
