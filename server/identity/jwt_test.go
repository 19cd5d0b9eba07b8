package identity

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// oidcIssuer is a real issuer over HTTPS: discovery, keys, and JWTs.
type oidcIssuer struct {
	*httptest.Server
	caFile string
	away   atomic.Bool
	asked  atomic.Int64 // for keys

	mu   sync.Mutex
	keys map[string]*ecdsa.PrivateKey
}

func newIssuer(t *testing.T) *oidcIssuer {
	t.Helper()
	o := &oidcIssuer{keys: map[string]*ecdsa.PrivateKey{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		o.answer(w, map[string]any{
			"issuer": o.URL, "jwks_uri": o.URL + "/keys", "authorization_endpoint": o.URL + "/auth",
			"id_token_signing_alg_values_supported": []string{"ES256", "HS256", "none"},
		})
	})
	mux.HandleFunc("GET /keys", func(w http.ResponseWriter, _ *http.Request) {
		o.asked.Add(1)
		o.mu.Lock()
		defer o.mu.Unlock()
		set := []any{map[string]string{"kty": "unknown", "kid": "odd"}}
		for id, key := range o.keys {
			set = append(set, jose.JSONWebKey{Key: &key.PublicKey, KeyID: id, Algorithm: "ES256", Use: "sig"})
		}
		o.answer(w, map[string]any{"keys": set})
	})
	o.Server = httptest.NewTLSServer(mux)
	o.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	t.Cleanup(o.Close)
	o.caFile = filepath.Join(t.TempDir(), "issuer.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: o.Certificate().Raw})
	if err := os.WriteFile(o.caFile, text, 0o600); err != nil {
		t.Fatal(err)
	}
	o.addKey(t, "first")
	return o
}

func (o *oidcIssuer) answer(w http.ResponseWriter, v any) {
	if o.away.Load() {
		http.Error(w, "planted page of a broken issuer", http.StatusBadGateway)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the test sees what is missing
}

func (o *oidcIssuer) addKey(t *testing.T, id string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.keys[id] = key
}

func (o *oidcIssuer) dropKey(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.keys, id)
}

// claims are good ones; change overwrites some, nil removes one.
func (o *oidcIssuer) claims(change map[string]any) map[string]any {
	c := map[string]any{
		"iss": o.URL, "aud": "leasehold", "sub": "alice", "exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix(),
		"groups": []string{"staff", "payments-team"},
	}
	for key, value := range change {
		if c[key] = value; value == nil {
			delete(c, key)
		}
	}
	return c
}

func (o *oidcIssuer) sign(t *testing.T, keyID string, claims map[string]any) string {
	t.Helper()
	o.mu.Lock()
	key := o.keys[keyID]
	o.mu.Unlock()
	return signed(t, jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: keyID}}, claims)
}

func signed(t *testing.T, key jose.SigningKey, claims map[string]any) string {
	t.Helper()
	signer, err := jose.NewSigner(key, nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	object, err := signer.Sign(text)
	if err != nil {
		t.Fatal(err)
	}
	token, err := object.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

const issuerEntries = `
issuers:
  - url: %s
    audience: leasehold
    ca_file: %s
    rules:
      - {claim: groups, value: payments-team, grants: {worker: ["pay*"]}}
      - {claim: groups, value: staff, grants: {viewer: ["*"]}, calls_per_second: 5}
      - {claim: realm.roles, value: ops, grants: {operator: ["*"]}}
      - {claim: "https://example.org/role", value: ops, grants: {operator: ["mail"]}}
      - {claim: scope, value: "jobs:write", grants: {producer: ["mail"]}}
`

// jwtRig is an Access that trusts an issuer, with a clock that a test moves.
type jwtRig struct {
	*Access
	issuer *oidcIssuer
	log    *bytes.Buffer
	offset atomic.Int64
}

func newJWTRig(t *testing.T, o *oidcIssuer) *jwtRig {
	t.Helper()
	path := filepath.Join(t.TempDir(), "access.yaml")
	if err := os.WriteFile(path, fmt.Appendf(nil, issuerEntries, o.URL, o.caFile), 0o600); err != nil {
		t.Fatal(err)
	}
	r := &jwtRig{issuer: o, log: &bytes.Buffer{}}
	var err error
	now := func() time.Time { return time.Now().Add(time.Duration(r.offset.Load())) }
	if r.Access, err = openAccess(t.Context(), path, slog.New(slog.NewTextHandler(r.log, nil)), now); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *jwtRig) elapse(d time.Duration) { r.offset.Add(int64(d)) }

// refused demands a refusal with a word, and tells whether it advises to try again.
func (r *jwtRig) refused(t *testing.T, what, token, word string) (again bool) {
	t.Helper()
	_, err := r.Authenticate(t.Context(), token, nil)
	refused, is := errors.AsType[*InvalidError](err)
	if !is || !strings.Contains(refused.Why, word) {
		t.Errorf("%s: got %v, want %q", what, err, word)
		return false
	}
	return refused.RetryAfter > 0
}

func (r *jwtRig) accepted(t *testing.T, what, token string) *Identity {
	t.Helper()
	id, err := r.Authenticate(t.Context(), token, nil)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	return id
}

func TestClaimsBecomeRoles(t *testing.T) {
	t.Parallel()
	r := newJWTRig(t, newIssuer(t))
	id := r.accepted(t, "good", r.issuer.sign(t, "first", r.issuer.claims(nil)))
	worker, viewer, operator, producer := pb.Role_ROLE_WORKER, pb.Role_ROLE_VIEWER, pb.Role_ROLE_OPERATOR, pb.Role_ROLE_PRODUCER
	if id.Name != "alice" || id.From != FromJWT || !id.May(worker, "payments") || id.May(worker, "mail") || !id.Everywhere(viewer) || id.Somewhere(operator) || id.limiter == nil {
		t.Errorf("got %+v", id)
	}
	again := r.accepted(t, "a new JWT", r.issuer.sign(t, "first", r.issuer.claims(map[string]any{"jti": "2"})))
	if again.limiter != id.limiter {
		t.Error("a new JWT refills the rate")
	}
	for name, c := range map[string]struct {
		change map[string]any
		role   pb.Role
		queue  string
	}{
		"a path":             {map[string]any{"realm": map[string]any{"roles": []string{"ops"}}}, operator, "any"},
		"a name with dots":   {map[string]any{"https://example.org/role": "ops"}, operator, "mail"},
		"a scope of several": {map[string]any{"scope": "openid jobs:write"}, producer, "mail"},
		"several audiences":  {map[string]any{"aud": []string{"other", "leasehold"}}, viewer, "any"},
	} {
		got := r.accepted(t, name, r.issuer.sign(t, "first", r.issuer.claims(c.change)))
		if !got.May(c.role, c.queue) {
			t.Errorf("%s: no %v on %s", name, c.role, c.queue)
		}
	}
}

func TestJWTsThatAreRefused(t *testing.T) {
	t.Parallel()
	r := newJWTRig(t, newIssuer(t))
	o := r.issuer
	sign := func(change map[string]any) string { return o.sign(t, "first", o.claims(change)) }
	good := sign(nil)
	parts := strings.Split(good, ".")
	forged := strings.Split(sign(map[string]any{"sub": "mallory"}), ".")
	o.mu.Lock()
	public, err := json.Marshal(jose.JSONWebKey{Key: &o.keys["first"].PublicKey, KeyID: "first"})
	o.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ token, want string }{
		"expired":              {sign(map[string]any{"exp": time.Now().Add(-time.Minute).Unix()}), "expired at"},
		"never expires":        {sign(map[string]any{"exp": nil}), "expired at"},
		"not yet":              {sign(map[string]any{"nbf": time.Now().Add(time.Hour).Unix()}), "not valid yet"},
		"another audience":     {sign(map[string]any{"aud": "mail-service"}), "another audience"},
		"no audience":          {sign(map[string]any{"aud": nil}), "another audience"},
		"another issuer":       {sign(map[string]any{"iss": "https://evil.example.org"}), "issuer is none"},
		"no rule fits":         {sign(map[string]any{"groups": []any{"guests", 7, map[string]any{}}}), "nobody whom a rule gives rights"},
		"no name":              {sign(map[string]any{"sub": nil}), "names nobody"},
		"a name that is empty": {sign(map[string]any{"sub": "\x00\n"}), "names nobody"},
		"another's claims":     {parts[0] + "." + forged[1] + "." + parts[2], "no key of its issuer"},
		"no signature":         {parts[0] + "." + parts[1] + ".", "no key of its issuer"},
		"alg none":             {"eyJhbGciOiJub25lIn0." + parts[1] + ".", "algorithm that is not allowed"},
		"public key as secret": {signed(t, jose.SigningKey{Algorithm: jose.HS256, Key: public}, o.claims(nil)), "algorithm that is not allowed"},
		"garbage":              {"a.b.c", "malformed"},
		"long":                 {good + strings.Repeat("x", maxJWTBytes), "too long"},
	} {
		r.refused(t, name, c.token, c.want)
	}
	r.accepted(t, "the good one", good)
	if strings.Contains(r.log.String(), parts[1]) {
		t.Error("the log has a JWT")
	}
}

// TestKeyRotation: a new key is fetched when a JWT names it, not more often than every ten
// seconds whatever is sent, and a withdrawn one is good for five minutes at most.
func TestKeyRotation(t *testing.T) {
	t.Parallel()
	r := newJWTRig(t, newIssuer(t))
	o := r.issuer
	old := o.sign(t, "first", o.claims(nil))
	r.accepted(t, "before", old)
	asked := o.asked.Load()
	o.addKey(t, "second")
	rotated := o.sign(t, "second", o.claims(nil))
	if !r.refused(t, "asked just now", rotated, "no key of its issuer") {
		t.Error("no advice to try again")
	}
	for i := range 50 {
		r.refused(t, "a flood", o.sign(t, "second", o.claims(map[string]any{"jti": i})), "no key of its issuer")
	}
	if n := o.asked.Load(); n != asked {
		t.Errorf("a flood of JWTs asked the issuer %d times", n-asked)
	}
	r.elapse(askAgainAfter)
	r.accepted(t, "rotated", rotated)
	r.accepted(t, "the old key beside it", old)
	o.dropKey("first")
	r.elapse(keysLast)
	r.Pass(t.Context())
	r.refused(t, "withdrawn", old, "no key of its issuer")
	r.accepted(t, "the key that is left", rotated)
}

// TestIssuerAway: keys that were seen stay good, nothing else is accepted, and nothing needs a
// restart.
func TestIssuerAway(t *testing.T) {
	t.Parallel()
	o := newIssuer(t)
	o.away.Store(true)
	r := newJWTRig(t, o)
	token := o.sign(t, "first", o.claims(nil))
	if !r.refused(t, "away at the start", token, "issuer does not answer") {
		t.Error("no advice to try again")
	}
	o.away.Store(false)
	r.Pass(t.Context())
	r.accepted(t, "it answers", token)
	o.away.Store(true)
	r.elapse(keysLast)
	r.Pass(t.Context())
	r.accepted(t, "away with its keys known", o.sign(t, "first", o.claims(map[string]any{"exp": time.Now().Add(2 * time.Hour).Unix()})))
	o.addKey(t, "second")
	r.elapse(askAgainAfter)
	if !r.refused(t, "an unknown key while away", o.sign(t, "second", o.claims(map[string]any{"exp": time.Now().Add(2 * time.Hour).Unix()})), "issuer does not answer") {
		t.Error("no advice to try again")
	}
	if text := r.log.String(); strings.Contains(text, "planted") || !strings.Contains(text, "does not answer") {
		t.Errorf("logged %s", text)
	}
}

// TestChangedRulesNeedNoIssuer: they act at once, with the keys that are known.
func TestChangedRulesNeedNoIssuer(t *testing.T) {
	t.Parallel()
	o := newIssuer(t)
	r := newJWTRig(t, o)
	token := o.sign(t, "first", o.claims(nil))
	r.accepted(t, "before", token)
	o.away.Store(true)
	text := strings.ReplaceAll(fmt.Sprintf(issuerEntries, o.URL, o.caFile), "staff", "nobody")
	if err := os.WriteFile(r.path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r.Pass(t.Context())
	if id := r.accepted(t, "after", token); id.Somewhere(pb.Role_ROLE_VIEWER) || !id.May(pb.Role_ROLE_WORKER, "pay") {
		t.Errorf("got %+v", id)
	}
}
