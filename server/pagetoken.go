package server

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
)

// A page token is version, position and the first 16 bytes of an HMAC-SHA256 over method,
// filter, version and position, in base64url. The filter itself is not in it: a token that
// is used with another filter fails its MAC like any garbage. So a position never pages
// through a list that it was not taken from, which would silently skip entries.
const (
	pageVersion = 1
	pageMACSize = 16
)

var pageEncoding = base64.RawURLEncoding.Strict()

// pageTokens seals and opens page tokens. Their key is derived from that of the lease
// tokens, so that every replica opens them and neither kind passes for the other.
type pageTokens struct{ key []byte }

func newPageTokens(tokenKey []byte) *pageTokens {
	h := hmac.New(sha256.New, tokenKey)
	h.Write([]byte("leasehold page token"))
	return &pageTokens{key: h.Sum(nil)}
}

// pageScope is what a token is bound to: a method, and a filter that can be written as JSON.
type pageScope struct {
	method string
	filter any
}

// seal makes the token of a position; empty at the end of a list (0).
func (t *pageTokens) seal(scope pageScope, next int64) string {
	if next == 0 {
		return ""
	}
	return t.sealBytes(scope, binary.BigEndian.AppendUint64(nil, uint64(next)))
}

// open finds the position of a token; 0, the start, for an empty one.
func (t *pageTokens) open(scope pageScope, token string) (int64, error) {
	if token == "" {
		return 0, nil
	}
	position, err := t.openBytes(scope, token)
	if err != nil || len(position) != 8 {
		return 0, errPageToken
	}
	return int64(binary.BigEndian.Uint64(position)), nil
}

// sealName and openName do the same for lists in the order of a name.
func (t *pageTokens) sealName(scope pageScope, next string) string {
	return t.sealBytes(scope, []byte(next))
}

func (t *pageTokens) openName(scope pageScope, token string) (string, error) {
	if token == "" {
		return "", nil
	}
	position, err := t.openBytes(scope, token)
	return string(position), err
}

var errPageToken = &invalidTokenError{field: "page_token", want: "must be the next_page_token of the page before, with the same filter"}

func (t *pageTokens) sealBytes(scope pageScope, position []byte) string {
	body := append([]byte{pageVersion}, position...)
	return pageEncoding.EncodeToString(append(body, t.mac(scope, body)...))
}

func (t *pageTokens) openBytes(scope pageScope, token string) ([]byte, error) {
	b, err := pageEncoding.DecodeString(token)
	// The decoder passes over line breaks, which are none of ours.
	if err != nil || len(token) != pageEncoding.EncodedLen(len(b)) || len(b) <= 1+pageMACSize || b[0] != pageVersion {
		return nil, errPageToken
	}
	body, mac := b[:len(b)-pageMACSize], b[len(b)-pageMACSize:]
	if !hmac.Equal(mac, t.mac(scope, body)) {
		return nil, errPageToken
	}
	return body[1:], nil
}

func (t *pageTokens) mac(scope pageScope, body []byte) []byte {
	filter, err := json.Marshal(scope.filter)
	if err != nil {
		// The filters are structs of strings, numbers and times of years 1 to 9999.
		panic(fmt.Sprintf("page token: filter of %s: %v", scope.method, err))
	}
	h := hmac.New(sha256.New, t.key) // it never fails to take bytes
	_, _ = fmt.Fprintf(h, "%s\x00%d\x00", scope.method, len(filter))
	h.Write(filter)
	h.Write(body)
	return h.Sum(nil)[:pageMACSize]
}
