package postgres

import (
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// plainError is a failure of a statement without the words of server or driver, which may
// repeat what the statement carried: a payload, a key, what a trigger raises. It goes into
// logs; what the failure means is found out by unwrapping it.
type plainError struct {
	text string
	err  error
}

func (e *plainError) Error() string { return e.text }
func (e *plainError) Unwrap() error { return e.err }

// telling are the classes of SQLSTATE whose messages speak of connections, locks, resources
// and names of the schema, never of values.
var telling = []string{"08", "25", "40", "42", "53", "54", "55", "57", "58"}

// plain makes a plainError of what may repeat values, and leaves the rest alone.
func plain(err error) error {
	if _, already := errors.AsType[*plainError](err); already {
		return err
	}
	if e, is := errors.AsType[*pgconn.PgError](err); is {
		if e.Severity != "ERROR" || slices.Contains(telling, e.Code[:min(2, len(e.Code))]) {
			return err
		}
		text := "the server refused a statement: SQLSTATE " + e.Code
		if e.ConstraintName != "" {
			text += ", constraint " + e.ConstraintName
		}
		if e.TableName != "" {
			text += ", table " + e.TableName
		}
		return &plainError{text: text, err: err}
	}
	if e, is := errors.AsType[pgx.ScanArgError](err); is {
		return &plainError{text: fmt.Sprintf("column %d of a row cannot be read", e.ColumnIndex), err: err}
	}
	return err
}
