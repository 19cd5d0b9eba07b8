package privatepg

import (
	"fmt"
	"strings"
)

// NotFoundError says that no usable PostgreSQL binaries are installed, or that
// the folder in LEASEHOLD_PG_BIN has none. Its text is one line with the remedy.
type NotFoundError struct {
	// EnvDir is the value of LEASEHOLD_PG_BIN, empty where it is unset.
	EnvDir string
	// Rejected are the candidates that were found and are of no use, each with
	// the reason.
	Rejected []string
}

func (e *NotFoundError) Error() string {
	if e.EnvDir != "" {
		return fmt.Sprintf("no PostgreSQL >= %d in %s=%s%s", minMajor, envBinDir, e.EnvDir, e.rejected())
	}
	return fmt.Sprintf("no PostgreSQL >= %d found%s: apt-get install postgresql, or brew install postgresql@17, "+
		"or set %s to the folder of initdb and postgres", minMajor, e.rejected(), envBinDir)
}

func (e *NotFoundError) rejected() string {
	if len(e.Rejected) == 0 {
		return ""
	}
	return " (" + strings.Join(e.Rejected, "; ") + ")"
}

// InUseError says that another live process has the data directory.
type InUseError struct {
	DataDir string
	// PID is the process that holds it: a process that runs this package, or a
	// postmaster that was started in another way. 0 where it is not known.
	PID int
}

func (e *InUseError) Error() string {
	return fmt.Sprintf("data directory %s in use by process %d", e.DataDir, e.PID)
}

// VersionError says that the data directory was made by another major version
// of PostgreSQL than those installed.
type VersionError struct {
	DataDir   string
	DataMajor int
	// Installed are the major versions that were found.
	Installed []int
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("data directory %s was made by PostgreSQL %d, installed are %v: "+
		"install PostgreSQL %d, or use another data directory", e.DataDir, e.DataMajor, e.Installed, e.DataMajor)
}

// NotTraversableError says that the account which must run PostgreSQL, because
// PostgreSQL refuses root, cannot enter a folder above its data directory.
type NotTraversableError struct {
	DataDir string
	// Folder is the topmost folder that is closed to the account.
	Folder  string
	Account string
}

func (e *NotTraversableError) Error() string {
	return fmt.Sprintf("data directory %s: the folder %s is closed to the user %s, who runs PostgreSQL because it "+
		"refuses root: use another data directory, or chmod o+x %s", e.DataDir, e.Folder, e.Account, e.Folder)
}

// ForeignDataError says that the folder given as DataDir is itself a data
// directory of PostgreSQL that this package did not make.
type ForeignDataError struct {
	DataDir string
}

func (e *ForeignDataError) Error() string {
	return fmt.Sprintf("%s is the data directory of another PostgreSQL server: use another folder", e.DataDir)
}

// PasswordMissingError says that a kept data directory has lost its password.
type PasswordMissingError struct {
	DataDir string
	File    string
}

func (e *PasswordMissingError) Error() string {
	return fmt.Sprintf("%s is missing: put it back, or remove %s to begin with an empty database", e.File, e.DataDir)
}

// StartError says that initdb or the server failed, with what they said last.
type StartError struct {
	// Step is "initdb" or "postgres".
	Step string
	// Log is the end of the step's output, at most 20 lines.
	Log string
	Err error
}

func (e *StartError) Error() string {
	return fmt.Sprintf("%s failed: %v\n%s", e.Step, e.Err, e.Log)
}

func (e *StartError) Unwrap() error { return e.Err }

// NotRunningError says that the server is down, so that the call has no object.
type NotRunningError struct {
	Call string
}

func (e *NotRunningError) Error() string {
	return e.Call + ": the private PostgreSQL server is not running"
}
