// Package identity finds out who calls, and what they may do. It knows neither gRPC nor the
// store: package server asks it for the identity behind a client certificate or a bearer
// token, and asks the identity about roles and queues.
//
//	                    access file (tokens, certificates, issuers), read again every 5 s
//	                                         │
//	bearer token ── SHA-256 known? ──────────┤
//	             └─ a JWT of an issuer? ─────┼──► Identity ─► role × queue patterns
//	client certificate ── URI, DNS, CN ──────┘
//
// # Who it is
//
// A token given wins over a certificate, and a token that is not good is refused even where a
// certificate would be: whoever shows a credential means it. Nothing in a request, lease_owner
// least of all, makes an identity.
//
// # What fails
//
// A file that turns bad keeps the last good one in force and is logged at each change; a
// service never starts on a bad one. An entry that is taken out is refused from the next
// reading on. An issuer that is away does no harm to JWTs whose key has been seen; others are
// refused with the advice to try again, never accepted. Keys are asked for again when a JWT
// names an unknown one, at most every ten seconds, so that garbage cannot be made to flood the
// issuer.
package identity
