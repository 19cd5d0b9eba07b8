package server

import (
	"bytes"
	"testing"

	"github.com/leasehold/leasehold/store"
)

// FuzzPageToken: a page token opens only as it was sealed, for the list that it was sealed for.
func FuzzPageToken(f *testing.F) {
	tokens := newPageTokens(make([]byte, 32))
	scope := pageScope{"ListJobs", store.JobFilter{}}
	for _, next := range []int64{1, 1 << 62} {
		f.Add(tokens.seal(scope, next))
		f.Add(tokens.seal(pageScope{method: "ListQueues"}, next))
	}
	f.Add(tokens.sealName(scope, "queue"))
	f.Add(tokens.seal(scope, 1) + "\n")
	f.Add("AQ==")
	f.Fuzz(func(t *testing.T, token string) {
		after, err := tokens.open(scope, token)
		if err == nil && token != "" && tokens.seal(scope, after) != token {
			t.Fatalf("%q opens as %d", token, after)
		}
		name, err := tokens.openName(scope, token)
		if err == nil && token != "" && tokens.sealName(scope, name) != token {
			t.Fatalf("%q opens as %q", token, name)
		}
	})
}

// FuzzPayload: whatever a producer gives as JSON either comes out byte for byte, or is
// refused.
func FuzzPayload(f *testing.F) {
	for _, seed := range []string{"", "{}", `{"a":"\u0000"}`, "1e400", "[[[[", "\"\xff\"", "null ", `{"a":1,"a":2}`} {
		f.Add([]byte(seed), true)
		f.Add([]byte(seed), false)
	}
	f.Fuzz(func(t *testing.T, data []byte, asJSON bool) {
		in := (&Server{}).intake()
		stored := in.payload("payload", payloadOut(&store.Payload{Data: data, JSON: asJSON, ContentType: "t"}))
		if in.err() == nil && (!bytes.Equal(stored.Data, data) || stored.JSON != asJSON) {
			t.Fatalf("%q comes out as %q", data, stored.Data)
		}
	})
}
