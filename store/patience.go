package store

import (
	"context"
	"time"
)

type impatientKey struct{}

// Impatient is a context under which a Store answers BusyError at once for what it finds
// locked, instead of trying again within the caller's time. For those who merge calls: the
// locked item of one caller must not delay the answers of the others.
func Impatient(ctx context.Context) context.Context {
	return context.WithValue(ctx, impatientKey{}, true)
}

// IsImpatient tells whether ctx came from Impatient.
func IsImpatient(ctx context.Context) bool { return ctx.Value(impatientKey{}) != nil }

type patientUntilKey struct{}

// PatientUntil is a context under which a Store ends its statements, and answers BusyError for
// what it finds locked, by that time, though the context itself goes on. For calls that
// outlive their caller: an answer that is on its way then is not cut off, and the caller
// hears in time of what did not come to be. The zero time takes that back.
func PatientUntil(ctx context.Context, at time.Time) context.Context {
	return context.WithValue(ctx, patientUntilKey{}, at)
}

// PatienceEnds is the time of PatientUntil, or else the deadline of ctx.
func PatienceEnds(ctx context.Context) (at time.Time, ok bool) {
	if at, ok := ctx.Value(patientUntilKey{}).(time.Time); ok && !at.IsZero() {
		return at, true
	}
	return ctx.Deadline()
}
