package model

import (
	"crypto/sha256"
	"encoding/json"

	"github.com/leasehold/leasehold/store"
)

// Digest tells whether two Completes say the same: the same result, the same follow-ups.
// Headers are left out, because a repeated call carries another trace context.
func Digest(result store.Payload, follow []store.NewJob) string {
	bare := make([]store.NewJob, len(follow))
	for i, j := range follow {
		j.Headers = nil
		bare[i] = j
	}
	return digest(struct {
		Result    store.Payload
		FollowUps []store.NewJob
	}{normal(result), bare})
}

// PayloadDigest is what an idempotency key compares: payload and content type.
func PayloadDigest(p store.Payload) string { return digest(normal(p)) }

// normal makes unset content the same as empty content.
func normal(p store.Payload) store.Payload {
	if len(p.Data) == 0 {
		p.Data = nil
	}
	return p
}

func digest(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // these types have nothing that JSON cannot write
	}
	sum := sha256.Sum256(b)
	return string(sum[:])
}
