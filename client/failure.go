package client

import (
	"errors"
	"fmt"
	"time"
)

// A handler says by its error what is to become of its job:
//
//	nil                    the job is COMPLETED
//	any error              an attempt is used; the job runs again after its backoff, or is DEAD
//	Permanent(err)         the job is DEAD
//	RetryAfter(d, err)     an attempt is used; the job runs again after d
//	Release(d)             no attempt is used; the job runs again after d
//
// They may be wrapped (fmt.Errorf with %w) and combined: WithCode("declined", Permanent(err)).

// FailError is a failure with what the service should know of it. Permanent, RetryAfter, WithCode
// and ThenEnqueue make one; it may also be made by hand.
type FailError struct {
	// Err is what went wrong. Its text is kept as the message, at most 16 KiB, cut.
	Err error
	// Code is a short word for machines, as "card_declined": ListJobs and RetryJobs choose by it.
	// Cut to 128 bytes. Default: none.
	Code string
	// Details is anything more, as JSON. Cut to 16 KiB. Default: none.
	Details string
	// Permanent: no attempt will succeed, the job is DEAD.
	Permanent bool
	// RetryAfter is when to run again, 0..5 years. Default: nil, after the job's backoff.
	RetryAfter *time.Duration
	// ThenEnqueue are jobs that are enqueued in the transaction which fails this one, at most 100.
	ThenEnqueue []NewJob
}

func (e *FailError) Error() string {
	if e.Err == nil {
		return "failed"
	}
	return e.Err.Error()
}

// Unwrap is Err.
func (e *FailError) Unwrap() error { return e.Err }

// Permanent is err as a failure that no attempt can mend: the job is DEAD.
func Permanent(err error) error {
	return failed(err, func(f *FailError) { f.Permanent = true })
}

// RetryAfter is err as a failure after which the job runs again not before d has passed, 0..5
// years, instead of its backoff.
func RetryAfter(d time.Duration, err error) error {
	return failed(err, func(f *FailError) { f.RetryAfter = &d })
}

// WithCode is err with a short word for machines, at most 128 bytes.
func WithCode(code string, err error) error {
	return failed(err, func(f *FailError) { f.Code = code })
}

// ThenEnqueue is err with jobs that are enqueued in the transaction which fails the job, at most
// 100: another queue that takes the case. Those of Job.ThenEnqueue are for success only.
func ThenEnqueue(err error, jobs ...NewJob) error {
	return failed(err, func(f *FailError) {
		f.ThenEnqueue = append(f.ThenEnqueue[:len(f.ThenEnqueue):len(f.ThenEnqueue)], jobs...)
	})
}

// failed adds to what err says of its failure already, and keeps its text.
func failed(err error, add func(*FailError)) error {
	f := failureOf(err)
	f.Err = err
	add(&f)
	return &f
}

// failureOf reads the failure that an error means.
func failureOf(err error) FailError {
	if inner, ok := errors.AsType[*FailError](err); ok {
		return *inner
	}
	return FailError{Err: err}
}

// ReleaseError gives the job back unfinished, without using an attempt; Release makes one.
type ReleaseError struct {
	// Delay is when the job runs again, 0..5 years.
	Delay time.Duration
}

func (e *ReleaseError) Error() string { return fmt.Sprintf("released, to run again after %v", e.Delay) }

// Release gives the job back unfinished, without using an attempt, to run again after delay, 0..5
// years: what the handler waits for is not there yet. Without a delay the fourth release in a row
// waits all the same, and the hundredth counts as failed.
func Release(delay time.Duration) error { return &ReleaseError{Delay: delay} }
