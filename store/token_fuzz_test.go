package store

import "testing"

// FuzzLeaseToken: a lease token opens only as it was sealed. Another spelling of the same bytes
// would be another token of the same lease.
func FuzzLeaseToken(f *testing.F) {
	tokens := NewTokens(make([]byte, 32))
	for _, ref := range []LeaseRef{{}, {JobID: 1, LeaseNo: 1}, {JobID: -1, LeaseNo: 1 << 62}} {
		f.Add(tokens.Seal(ref))
		f.Add(NewTokens([]byte("another key")).Seal(ref))
	}
	sealed := tokens.Seal(LeaseRef{JobID: 7, LeaseNo: 7})
	f.Add(sealed[:20] + "\r\n" + sealed[20:]) // the decoder passes over these
	f.Add("")
	f.Add("AQ")
	f.Fuzz(func(t *testing.T, token string) {
		if ref, ok := tokens.Open(token); ok && tokens.Seal(ref) != token {
			t.Fatalf("%q opens as %+v", token, ref)
		}
	})
}
