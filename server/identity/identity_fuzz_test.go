package identity

import (
	"encoding/json"
	"slices"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/time/rate"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// FuzzAccessFile: any file is read or refused, and whoever comes out of it has a name, a role
// and at least one queue.
func FuzzAccessFile(f *testing.F) {
	_, line, err := NewToken{Name: "n", Roles: []string{"worker", "operator"}, Queues: []string{"a*", "b"}, Payloads: true}.Make()
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte("tokens:\n" + line))
	f.Add([]byte("certificates: [{name: n, subject: 'uri:spiffe://x', grants: {viewer: ['*']}, calls_per_second: 1e-300}]"))
	f.Add([]byte("issuers: [{url: 'https://x', audience: a, rules: [{claim: c, value: v, grants: {worker: ['a']}}]}]"))
	f.Add([]byte("tokens: &a [*a]"))
	f.Add([]byte("a: &a [b,b]\nb: &b [*a,*a]\ntokens: *b"))
	f.Fuzz(func(t *testing.T, text []byte) {
		e, err := parseAccess(text)
		if err != nil {
			if !utf8.ValidString(err.Error()) || len(err.Error()) > 1000+20*len(text) {
				t.Fatalf("an error of %d bytes", len(err.Error()))
			}
			return
		}
		for _, id := range e.tokens {
			checkIdentity(t, id)
		}
		for _, id := range e.certificates {
			checkIdentity(t, id)
		}
	})
}

func checkIdentity(t *testing.T, id *Identity) {
	t.Helper()
	some := slices.ContainsFunc([]pb.Role{1, 2, 3, 4}, id.Somewhere)
	if id.Name == "" || len(id.Name) > maxNameBytes || !some || id.Somewhere(pb.Role_ROLE_UNSPECIFIED) {
		t.Fatalf("%+v", id)
	}
	if id.May(pb.Role_ROLE_OPERATOR, "q") && (!id.May(pb.Role_ROLE_VIEWER, "q") || !id.SeesContents("q")) {
		t.Fatalf("an operator that does not see: %+v", id)
	}
}

// FuzzClaims: whatever an issuer claims, only the values of the rules give rights.
func FuzzClaims(f *testing.F) {
	for _, seed := range []string{
		`{"sub":"a","groups":["ops"]}`, `{"sub":"a","groups":"ops"}`, `{"sub":["a"],"groups":[["ops"]]}`,
		`{"sub":"a","realm":{"roles":["ops",1,null,{}]}}`, `{"sub":"\u0000\u202e","scope":"x ops"}`, `{"realm":{"roles":{"roles":1}},"":{"":1}}`,
	} {
		f.Add([]byte(seed))
	}
	rule := func(claim string, role string) ruleEntry {
		return ruleEntry{Claim: claim, Value: "ops", rights: rights{Grants: map[string][]string{role: {"q"}}, CallsPerSecond: 1}}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var claims map[string]any
		if json.Unmarshal(text, &claims) != nil {
			return
		}
		rules := []ruleEntry{rule("groups", "worker"), rule("realm.roles", "viewer"), rule("scope", "producer")}
		id := (&issuer{cfg: issuerEntry{Rules: rules}, limiters: &limiters{byName: map[string]*rate.Limiter{}}}).identity(claims)
		if id == nil {
			return
		}
		checkIdentity(t, id)
		if id.May(pb.Role_ROLE_OPERATOR, "q") || id.May(pb.Role_ROLE_WORKER, "other") || !utf8.ValidString(id.Name) {
			t.Fatalf("%s gives %+v", text, id)
		}
	})
}

// FuzzJWT: what is no JWT of the issuer is refused, whatever it looks like.
func FuzzJWT(f *testing.F) {
	f.Add("a.b.c")
	f.Add("eyJhbGciOiJub25lIn0.eyJpc3MiOiJ4In0.")
	f.Add("eyJhbGciOiJIUzI1NiJ9.e30.AA")
	f.Add("..")
	a := &Access{now: time.Now}
	s := &state{entries: &entries{}, issuers: []*issuer{{cfg: issuerEntry{URL: "x"}, now: time.Now}}}
	f.Fuzz(func(t *testing.T, token string) {
		if id, err := a.byToken(t.Context(), s, token); err == nil {
			t.Fatalf("%q is %+v", token, id)
		}
	})
}

// FuzzPattern: a pattern that was taken never fails, and one without * is exactly one name.
func FuzzPattern(f *testing.F) {
	f.Add("pay*", "payments")
	f.Add("*a*b*", "xaxb")
	f.Add("q", "q")
	f.Fuzz(func(t *testing.T, pattern, queue string) {
		s, err := newScope([]string{pattern})
		if err != nil {
			return
		}
		if !slices.Contains([]byte(pattern), '*') && s.holds(queue) != (pattern == queue) {
			t.Fatalf("%q holds %q", pattern, queue)
		}
	})
}
