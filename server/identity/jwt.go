package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/time/rate"
)

const (
	// issuerPatience bounds one request to an issuer.
	issuerPatience = 5 * time.Second
	// askAgainAfter is the least time between two requests for the keys of an issuer.
	askAgainAfter = 10 * time.Second
	// maxIssuerAnswer bounds what is read of an issuer's answer.
	maxIssuerAnswer = 1 << 20
	// verdictLasts is how long a JWT that was found good is not checked again: verifying an
	// RSA signature with each heartbeat would cost more than the heartbeat.
	verdictLasts = time.Minute
	maxVerdicts  = 10_000
	// maxJWTBytes is far above any that fits into the headers of other services.
	maxJWTBytes = 16 << 10
)

// algorithms are those by which an issuer may sign. HMAC is not among them: its key would be
// known to the service, and a public key taken for one is a classic forgery.
var algorithms = []string{
	oidc.RS256, oidc.RS384, oidc.RS512, oidc.ES256, oidc.ES384, oidc.ES512, oidc.PS256, oidc.PS384, oidc.PS512, oidc.EdDSA,
}

// issuer judges the JWTs of one issuer.
type issuer struct {
	cfg    issuerEntry
	client *http.Client
	now    func() time.Time
	found  atomic.Pointer[found] // nil until the issuer has answered

	// away tells that it did not answer the last time: a change is logged, not each time.
	away atomic.Bool
	// limiters outlive a change of the rules.
	limiters *limiters

	mu       sync.Mutex
	verdicts map[[32]byte]verdict
}

// found is what an issuer told of itself.
type found struct {
	keys     *keySet
	verifier *oidc.IDTokenVerifier
}

// verdict is what was found of a JWT.
type verdict struct {
	id    *Identity
	until time.Time
}

func (e *issuerEntry) check() error {
	u, err := url.Parse(e.URL)
	if err != nil || u.Scheme != "https" || u.Host == "" {
		return errors.New("url must be the issuer's, https://…, exactly as in the claim iss")
	}
	if e.Audience == "" {
		return errors.New("audience is required: a JWT made for another service must not open this one")
	}
	if len(e.Rules) == 0 {
		return errors.New("rules must give rights to somebody")
	}
	for i, r := range e.Rules {
		if r.Claim == "" || r.Value == "" {
			return fmt.Errorf("rules[%d]: claim and value are required", i)
		}
		if _, err := r.identity("name", FromJWT); err != nil {
			return fmt.Errorf("rules[%d]: %w", i, err)
		}
	}
	return nil
}

// issuer makes the judge of an entry. One whose entry names the same issuer keeps its keys,
// so that a change of rules does not need the issuer.
func (a *Access) issuer(old *state, cfg *issuerEntry) (*issuer, error) {
	iss := &issuer{cfg: *cfg, now: a.now, verdicts: map[[32]byte]verdict{}, limiters: &limiters{byName: map[string]*rate.Limiter{}}}
	if old != nil {
		for _, was := range old.issuers {
			if was.cfg.URL == cfg.URL && was.cfg.Audience == cfg.Audience && was.cfg.CAFile == cfg.CAFile {
				iss.client, iss.limiters = was.client, was.limiters
				iss.away.Store(was.away.Load())
				iss.found.Store(was.found.Load())
				return iss, nil
			}
		}
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}, Proxy: http.ProxyFromEnvironment, MaxIdleConns: 1, IdleConnTimeout: time.Second}
	if cfg.CAFile != "" {
		text, err := os.ReadFile(cfg.CAFile)
		if err != nil {
			return nil, err
		}
		transport.TLSClientConfig.RootCAs = x509.NewCertPool()
		if !transport.TLSClientConfig.RootCAs.AppendCertsFromPEM(text) {
			return nil, &FileError{Path: cfg.CAFile, Err: errors.New("holds no certificate")}
		}
	}
	iss.client = &http.Client{Timeout: issuerPatience, Transport: bounded{transport}}
	return iss, nil
}

// bounded reads no endless answer.
type bounded struct{ http.RoundTripper }

func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.RoundTripper.RoundTrip(r)
	if err == nil {
		resp.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(resp.Body, maxIssuerAnswer), resp.Body}
	}
	return resp, err
}

// find asks the issuer where its keys are, unless it has said so already, and for keys that
// have become old. The error is for the log; what the issuer answered is not in it.
func (i *issuer) find(ctx context.Context) error {
	if v := i.found.Load(); v != nil {
		_, err := v.keys.refresh(ctx, keysLast)
		return silence(err)
	}
	provider, err := oidc.NewProvider(oidc.ClientContext(ctx, i.client), i.cfg.URL)
	if err != nil {
		return silence(err)
	}
	var told struct {
		KeysURL    string   `json:"jwks_uri"`
		Algorithms []string `json:"id_token_signing_alg_values_supported"`
	}
	if err := provider.Claims(&told); err != nil {
		return errNotAnIssuer
	}
	if u, err := url.Parse(told.KeysURL); err != nil || u.Scheme != "https" {
		return errors.New("its jwks_uri is not https")
	}
	keys := &keySet{url: told.KeysURL, client: i.client, now: i.now}
	algs := slices.DeleteFunc(told.Algorithms, func(a string) bool { return !slices.Contains(algorithms, a) })
	i.found.Store(&found{keys: keys, verifier: oidc.NewVerifier(i.cfg.URL, keys, &oidc.Config{
		ClientID: i.cfg.Audience, SupportedSigningAlgs: algs, Now: i.now,
	})})
	_, err = keys.refresh(ctx, keysLast)
	return silence(err)
}

var errNotAnIssuer = errors.New("it answered, but not with the discovery document or the keys of this issuer")

// silence keeps what is said of the network and of certificates, and drops what was answered.
func silence(err error) error {
	if err == nil {
		return nil
	}
	if network, is := errors.AsType[*url.Error](err); is {
		return network.Err
	}
	return errNotAnIssuer
}

func (a *Access) byJWT(ctx context.Context, s *state, token string) (*Identity, error) {
	refused := func(why string) (*Identity, error) { return nil, &InvalidError{Kind: FromJWT, Why: why} }
	if len(token) > maxJWTBytes {
		return refused("it is too long")
	}
	claimed, ok := unverified(token)
	if !ok {
		return refused("it is malformed")
	}
	for _, iss := range s.issuers {
		if iss.cfg.URL == claimed.Issuer {
			return iss.judge(ctx, token, claimed)
		}
	}
	return refused("its issuer is none of those in the access file")
}

// claims are those that a refusal tells of.
type claims struct {
	Issuer   string   `json:"iss"`
	Audience audience `json:"aud"`
}

// audience is one name or several.
type audience []string

func (a *audience) UnmarshalJSON(text []byte) error {
	var one string
	if json.Unmarshal(text, &one) == nil {
		*a = audience{one}
		return nil
	}
	return json.Unmarshal(text, (*[]string)(a))
}

// unverified reads what a JWT claims. It says which issuer to ask, and nothing else.
func unverified(token string) (claims, bool) {
	var c claims
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return c, false
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(text, &c) != nil {
		return c, false
	}
	return c, true
}

func (i *issuer) judge(ctx context.Context, token string, claimed claims) (*Identity, error) {
	sum := hashOf(token)
	i.mu.Lock()
	known, seen := i.verdicts[sum]
	i.mu.Unlock()
	if seen && i.now().Before(known.until) {
		return known.id, nil
	}
	f := i.found.Load()
	if f == nil {
		return nil, away()
	}
	var cause error
	verified, err := f.verifier.Verify(context.WithValue(ctx, causeKey{}, &cause), token)
	if err != nil {
		return nil, refusal(err, cause, slices.Contains(claimed.Audience, i.cfg.Audience))
	}
	var all map[string]any
	if err := verified.Claims(&all); err != nil {
		return nil, &InvalidError{Kind: FromJWT, Why: "its claims are no object"}
	}
	id := i.identity(all)
	if id == nil {
		return nil, &InvalidError{Kind: FromJWT, Why: "it names nobody, or nobody whom a rule gives rights"}
	}
	i.remember(sum, id, verified.Expiry)
	return id, nil
}

func away() error {
	return &InvalidError{Kind: FromJWT, Why: "it cannot be checked now, because its issuer does not answer", RetryAfter: askAgainAfter}
}

// refusal says why a JWT was not accepted. The library's own text quotes the JWT.
func refusal(err, cause error, forUs bool) error {
	const noKey = "no key of its issuer fits its signature"
	why := "it is malformed, not valid yet, or signed by an algorithm that is not allowed"
	switch expired, is := errors.AsType[*oidc.TokenExpiredError](err); {
	case is:
		why = "it expired at " + expired.Expiry.UTC().Format(time.RFC3339)
	case errors.Is(cause, errNoKeyYet):
		return &InvalidError{Kind: FromJWT, Why: noKey, RetryAfter: askAgainAfter}
	case errors.Is(cause, errAway):
		return away()
	case cause != nil:
		why = noKey
	case !forUs:
		why = "it was made for another audience"
	}
	return &InvalidError{Kind: FromJWT, Why: why}
}

func (i *issuer) remember(sum [32]byte, id *Identity, expiry time.Time) {
	until := i.now().Add(verdictLasts)
	if expiry.Before(until) {
		until = expiry
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.verdicts) >= maxVerdicts {
		clear(i.verdicts)
	}
	i.verdicts[sum] = verdict{id: id, until: until}
}
