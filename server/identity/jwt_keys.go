package identity

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"
)

// keysLast is how old the keys of an issuer may become before they are asked for anyway: a
// key that the issuer has withdrawn must not be good for ever.
const keysLast = 5 * time.Minute

// keySet keeps the keys of an issuer. It asks again when a signature fits none of them, but
// not more often than askAgainAfter, because anybody can send such JWTs. Keys stay in force
// until the issuer has answered without them, also while it is away.
type keySet struct {
	url    string
	client *http.Client
	now    func() time.Time
	keys   atomic.Pointer[oidc.StaticKeySet]

	mu    sync.Mutex // held while the issuer is asked
	asked time.Time
	err   error // of the last time
}

var (
	errAway     = errors.New("the issuer does not give its keys")
	errNoKeyYet = errors.New("no key fits, and the issuer was asked just now")
	errNoKey    = errors.New("no key fits")
)

// causeKey carries where to put the cause of a refusal, because the verifier turns it into
// text.
type causeKey struct{}

// VerifySignature implements oidc.KeySet.
func (k *keySet) VerifySignature(ctx context.Context, token string) ([]byte, error) {
	payload, err := k.verify(ctx, token)
	if cause, ok := ctx.Value(causeKey{}).(*error); ok {
		*cause = err
	}
	return payload, err
}

func (k *keySet) verify(ctx context.Context, token string) ([]byte, error) {
	before := k.keys.Load()
	if before != nil {
		if payload, err := before.VerifySignature(ctx, token); err == nil {
			return payload, nil
		}
	}
	asked, err := k.refresh(ctx, askAgainAfter)
	if after := k.keys.Load(); after != nil && after != before {
		if payload, err := after.VerifySignature(ctx, token); err == nil {
			return payload, nil
		}
	}
	switch {
	case err != nil:
		return nil, errAway
	case asked:
		return nil, errNoKey
	}
	return nil, errNoKeyYet
}

// refresh asks the issuer for its keys if that was not done for a time. The error is that of
// the last asking, also where it was not this call that asked.
func (k *keySet) refresh(ctx context.Context, after time.Duration) (asked bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.asked.IsZero() && k.now().Sub(k.asked) < after {
		return false, k.err
	}
	// The caller may go away; others wait for the same answer.
	keys, err := k.fetch(context.WithoutCancel(ctx))
	k.asked, k.err = k.now(), err
	if err == nil {
		k.keys.Store(&oidc.StaticKeySet{PublicKeys: keys})
	}
	return true, err
}

func (k *keySet) fetch(ctx context.Context) (keys []crypto.PublicKey, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, k.url, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := k.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if resp.StatusCode != http.StatusOK || json.Unmarshal(text, &set) != nil {
		return nil, fmt.Errorf("it answered %s without a set of keys", resp.Status)
	}
	for _, raw := range set.Keys {
		var key jose.JSONWebKey
		// One key of a kind that is not known here does not void the others.
		if json.Unmarshal(raw, &key) != nil || key.Use == "enc" {
			continue
		}
		switch key.Key.(type) {
		case *rsa.PublicKey, *ecdsa.PublicKey, ed25519.PublicKey:
			keys = append(keys, key.Key)
		}
	}
	return keys, nil
}
