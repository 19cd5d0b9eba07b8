package store

import "context"

type impatientKey struct{}

// Impatient is a context under which a Store answers BusyError at once for what it finds
// locked, instead of trying again within the caller's time. For those who merge calls: the
// locked item of one caller must not delay the answers of the others.
func Impatient(ctx context.Context) context.Context {
	return context.WithValue(ctx, impatientKey{}, true)
}

// IsImpatient tells whether ctx came from Impatient.
func IsImpatient(ctx context.Context) bool { return ctx.Value(impatientKey{}) != nil }
