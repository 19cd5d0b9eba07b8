package store

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"hash"
	"sync"
)

// A lease token is version, job id, lease number and the first 16 bytes of an HMAC-SHA256
// over them, in base64url. Nothing is stored per lease, a replay can make it again, and it
// can neither be guessed nor made from another's.
const (
	tokenVersion = 1
	tokenMACSize = 16
	tokenSize    = 1 + 8 + 8 + tokenMACSize
)

var tokenEncoding = base64.RawURLEncoding.Strict()

// Tokens seals and opens lease tokens with one key. It is safe for concurrent use.
type Tokens struct{ macs sync.Pool }

// NewTokens takes the key that Maintenance.TokenKey gave.
func NewTokens(key []byte) *Tokens {
	// One that is reset skips the key's own two blocks, half of the work for a body so short.
	return &Tokens{macs: sync.Pool{New: func() any { return hmac.New(sha256.New, key) }}}
}

// Seal makes the token of a lease.
func (t *Tokens) Seal(ref LeaseRef) string {
	b := make([]byte, tokenSize-tokenMACSize, tokenSize-tokenMACSize+sha256.Size)
	b[0] = tokenVersion
	binary.BigEndian.PutUint64(b[1:], uint64(ref.JobID))
	binary.BigEndian.PutUint64(b[9:], uint64(ref.LeaseNo))
	return tokenEncoding.EncodeToString(t.appendMAC(b, b))
}

// Open finds the lease of a token; false where this database did not give it.
func (t *Tokens) Open(token string) (LeaseRef, bool) {
	// The decoder passes over line breaks: without the look at the length a lease would have
	// any number of tokens.
	if len(token) != tokenEncoding.EncodedLen(tokenSize) {
		return LeaseRef{}, false
	}
	b, err := tokenEncoding.DecodeString(token)
	if err != nil || len(b) != tokenSize || b[0] != tokenVersion {
		return LeaseRef{}, false
	}
	body, mac := b[:tokenSize-tokenMACSize], b[tokenSize-tokenMACSize:]
	var want [sha256.Size]byte
	if !hmac.Equal(mac, t.appendMAC(want[:0], body)) {
		return LeaseRef{}, false
	}
	return LeaseRef{
		JobID:   JobID(binary.BigEndian.Uint64(body[1:])),
		LeaseNo: int64(binary.BigEndian.Uint64(body[9:])),
	}, true
}

// appendMAC appends the MAC of body to b.
func (t *Tokens) appendMAC(b, body []byte) []byte {
	h := t.macs.Get().(hash.Hash)
	defer t.macs.Put(h)
	h.Reset()
	h.Write(body)
	size := len(b) + tokenMACSize
	return h.Sum(b)[:size]
}
