package privatepg

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// takeLock locks the file for this process and writes its id there. The lock
// ends with the process however it ends, which no pid file achieves. Fails with
// *[InUseError] where another process, or another server of this one, has it.
func takeLock(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		file.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, &InUseError{DataDir: filepath.Dir(path), PID: readPID(path)}
		}
		return nil, &os.PathError{Op: "flock", Path: path, Err: err}
	}
	if err := writePID(file); err != nil {
		dropLock(file)
		return nil, err
	}
	return file, nil
}

// dropLock unlocks explicitly: a child that is being forked at this moment holds
// a copy of the descriptor, and closing ours would leave the lock with it.
func dropLock(file *os.File) {
	_ = syscall.Flock(int(file.Fd()), syscall.LOCK_UN)
	file.Close()
}

func writePID(file *os.File) error {
	if err := file.Truncate(0); err != nil {
		return err
	}
	_, err := file.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

// readPID returns the process id in the first line of the file, or 0.
func readPID(path string) int {
	content, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(firstLine(string(content))))
	if err != nil || pid <= 0 {
		return 0
	}
	return pid
}
