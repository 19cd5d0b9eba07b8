package bench

import "syscall"

// childAttributes of a child process. A group of its own: a Ctrl-C at the terminal is for the
// benchmark, which ends its children. The kernel ends it when the benchmark is killed.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
