//go:build !linux

package bench

import "syscall"

// childAttributes of a child process. A group of its own: a Ctrl-C at the terminal is for the
// benchmark, which ends its children.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
