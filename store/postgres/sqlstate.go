package postgres

import (
	"errors"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/leasehold/leasehold/store"
)

// fault is what a failed statement means for the call that needed it.
type fault int

const (
	// faultUndone: the statement did nothing and a repetition may succeed at once.
	faultUndone fault = iota + 1
	// faultBusy: a lock was not to be had in time; nothing was done.
	faultBusy
	// faultUnavailable: no writable database; nothing was done.
	faultUnavailable
	// faultUnknown: the connection broke after the statement was sent.
	faultUnknown
	// faultNoPartition: the ids have run ahead of the partitions; nothing was done.
	faultNoPartition
	// faultBug: anything else that the server refused; repeating does not help.
	faultBug
)

// The SQLSTATEs that mean something to us. Errors are told apart by these codes, never by
// their text.
const (
	codeSerialization      = "40001"
	codeDeadlock           = "40P01"
	codeLockNotAvailable   = "55P03"
	codeQueryCanceled      = "57014"
	codeReadOnly           = "25006"
	codeUniqueViolation    = "23505"
	codeCheckViolation     = "23514"
	codeTooManyConnections = "53300"
	codeStatementChanged   = "0A000"
	codeUnknownStatement   = "26000"
)

// classify says what err means. sent tells whether the statement may have reached the server.
func classify(err error, sent bool) fault {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		if !sent || pgconn.SafeToRetry(err) {
			return faultUnavailable
		}
		return faultUnknown
	}
	if pgErr.Severity == "FATAL" || pgErr.Severity == "PANIC" {
		// The session ended; it may have been between the commit and its confirmation.
		if sent {
			return faultUnknown
		}
		return faultUnavailable
	}
	switch pgErr.Code {
	case codeSerialization, codeDeadlock, codeStatementChanged, codeUnknownStatement:
		return faultUndone
	case codeLockNotAvailable, codeQueryCanceled:
		return faultBusy
	case codeReadOnly, codeTooManyConnections:
		return faultUnavailable
	case codeCheckViolation:
		// "no partition of relation found for row" names no constraint; a CHECK does.
		if pgErr.ConstraintName == "" {
			return faultNoPartition
		}
		return faultBug
	}
	switch pgErr.Code[:2] {
	case "08", "53", "57", "58": // connection, resources, intervention, I/O
		return faultUnavailable
	}
	return faultBug
}

// mustDiscard tells whether the connection of a failed statement must not be used again: a
// session on a demoted node stays read-only for ever.
func mustDiscard(err error) bool {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.Code == codeReadOnly || pgErr.Severity != "ERROR"
	}
	return err != nil
}

// isCode tells whether err is the server's error of that SQLSTATE.
func isCode(err error, code string) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == code
}

// domainError turns a statement's failure into an error of the Store's contract.
func domainError(err error, sent, idempotent bool) error {
	switch classify(err, sent) {
	case faultBusy, faultUndone:
		return &store.BusyError{What: "a table or row of the call"}
	case faultUnavailable, faultNoPartition:
		return &store.UnavailableError{Cause: err}
	case faultUnknown:
		if idempotent {
			return &store.UnavailableError{Cause: err}
		}
		return &store.OutcomeUnknownError{Cause: err}
	}
	return err
}
