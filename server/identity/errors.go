package identity

import "time"

// MissingError refuses a call that shows neither a token nor a certificate.
type MissingError struct{}

func (*MissingError) Error() string {
	return "this service wants to know who calls: a bearer token in the metadata authorization, or a client certificate"
}

// InvalidError refuses a credential. Why is one of few fixed texts: nothing of the credential
// itself is in it.
type InvalidError struct {
	Kind string // token, certificate or jwt
	Why  string
	// RetryAfter is set where the credential could not be judged, and may be good.
	RetryAfter time.Duration
}

func (e *InvalidError) Error() string { return "the " + e.Kind + " is not accepted: " + e.Why }
