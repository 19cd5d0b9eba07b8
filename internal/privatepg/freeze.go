package privatepg

import (
	"slices"
	"syscall"
)

// Freeze stops every process of the server where it stands (SIGSTOP). To clients
// it is a server that takes connections and bytes and never answers. It returns
// when all are stopped.
func (s *Server) Freeze() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.proc.running() {
		return &NotRunningError{Call: "freeze"}
	}
	// The postmaster first: it alone makes new processes.
	if err := stopProcess(s.proc.pid); err != nil {
		return err
	}
	children, err := childrenOf(s.proc.pid)
	if err != nil {
		return err
	}
	for _, child := range children {
		if err := stopProcess(child); err != nil {
			return err
		}
	}
	return nil
}

// Thaw lets a frozen server go on (SIGCONT).
func (s *Server) Thaw() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.proc.running() {
		return &NotRunningError{Call: "thaw"}
	}
	return s.thaw()
}

func (s *Server) thaw() error {
	children, err := childrenOf(s.proc.pid)
	if err != nil {
		return err
	}
	for _, pid := range slices.Concat(children, []int{s.proc.pid}) {
		if err := signalPID(pid, syscall.SIGCONT); err != nil {
			return err
		}
	}
	return nil
}

func stopProcess(pid int) error {
	if err := signalPID(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	return awaitState(pid, stopped)
}
