package identity

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// made is a token and its line.
func made(t *testing.T, n NewToken) (token, line string) {
	t.Helper()
	token, line, err := n.Make()
	if err != nil {
		t.Fatal(err)
	}
	return token, line
}

func accessOf(t *testing.T, text string) *Access {
	t.Helper()
	path := filepath.Join(t.TempDir(), "access.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	a, err := OpenAccess(t.Context(), path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestTokenAndLineBelongTogether: the line, put below tokens, opens the door to the token, and
// does not contain it.
func TestTokenAndLineBelongTogether(t *testing.T) {
	t.Parallel()
	expires := time.Now().Add(time.Hour)
	token, line := made(t, NewToken{
		Name: `odd "name": {x}, #y`, Roles: []string{"worker", "viewer"}, Queues: []string{"pay*", "mail"}, Payloads: true, Expires: expires,
	})
	if strings.Contains(line, token) || strings.Contains(line, "\n") || !strings.HasPrefix(token, "lh_") || len(token) != 46 {
		t.Errorf("token %q, line %q", token, line)
	}
	a := accessOf(t, "tokens:\n"+line+"\n")
	id, err := a.Authenticate(t.Context(), token, nil)
	if err != nil {
		t.Fatal(err)
	}
	worker, viewer, producer := pb.Role_ROLE_WORKER, pb.Role_ROLE_VIEWER, pb.Role_ROLE_PRODUCER
	if id.Name != `odd "name": {x}, #y` || !id.May(worker, "payments") || !id.May(viewer, "mail") || id.May(worker, "mails") || id.Somewhere(producer) || !id.SeesContents("pay") || id.SeesContents("x") {
		t.Errorf("got %+v", id)
	}
	a.now = func() time.Time { return expires }
	if _, err := a.Authenticate(t.Context(), token, nil); err == nil || !strings.Contains(err.Error(), "expired") {
		t.Errorf("at its end: %v", err)
	}
	another, _ := made(t, NewToken{Name: "n", Roles: []string{"viewer"}, Queues: []string{"*"}})
	if another == token {
		t.Error("the same token twice")
	}
}

func TestBadRequestsForTokens(t *testing.T) {
	t.Parallel()
	for want, n := range map[string]NewToken{
		"role":    {Name: "n", Queues: []string{"*"}},
		"no role": {Name: "n", Roles: []string{"root"}, Queues: []string{"*"}},
		"pattern": {Name: "n", Roles: []string{"viewer"}},
		"name":    {Roles: []string{"viewer"}, Queues: []string{"*"}},
		"PAY":     {Name: "n", Roles: []string{"viewer"}, Queues: []string{"PAY"}},
		"control": {Name: "a\nb", Roles: []string{"viewer"}, Queues: []string{"*"}},
	} {
		if _, _, err := n.Make(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got %v, want %q", n, err, want)
		}
	}
}

// TestBadAccessFiles name the place, and never repeat a value that may be a secret.
func TestBadAccessFiles(t *testing.T) {
	t.Parallel()
	token, line := made(t, NewToken{Name: "n", Roles: []string{"viewer"}, Queues: []string{"*"}})
	const sum = `"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"`
	for text, want := range map[string]string{
		"":         "no entry",
		"tokens: ": "no entry",
		"tokens: [{name: n, sha256: " + token + ", grants: {viewer: ['*']}}]":                     "tokens[0]: sha256 must be",
		"tokens:\n" + line + "\n" + line:                                                          "tokens[1]: the same sha256",
		"tokens: [{name: n, sha256: " + sum + "}]":                                                "tokens[0]: grants",
		"tokens: [{name: n, sha256: " + sum + ", grants: {viewer: []}}]":                          "at least one pattern",
		"tokens: [{name: n, sha256: " + sum + ", grants: {admin: ['*']}}]":                        `"admin" is no role`,
		"tokens: [{name: n, sha256: " + sum + ", grants: {viewer: ['a b']}}]":                     "no pattern",
		"tokens: [{name: n, sha256: " + sum + ", grants: {viewer: ['[a]']}}]":                     "no pattern",
		"tokens: [{nam: " + token + "}]":                                                          "line 1: there is no field nam",
		"tokens: " + token:                                                                        "line 1",
		"tokens: [{name: n, calls_per_second: " + token + "}]":                                    "line 1",
		"tokens: [{name: n, sha256: " + sum + ", calls_per_second: -1, grants: {viewer: ['*']}}]": "calls_per_second",
		"certificates: [{name: n, subject: worker, grants: {viewer: ['*']}}]":                     "certificates[0]: subject",
		"issuers: [{url: 'http://x', audience: a, rules: []}]":                                    "issuers[0]: url",
		"issuers: [{url: 'https://x', rules: []}]":                                                "audience",
		"issuers: [{url: 'https://x', audience: a}]":                                              "rules",
		"issuers: [{url: 'https://x', audience: a, rules: [{claim: g}]}]":                         "rules[0]",
		"{": "is not an access file",
	} {
		_, err := parseAccess([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80s: got %v, want %q", text, err, want)
		}
		if err != nil && strings.Contains(err.Error(), token[:30]) {
			t.Errorf("the error repeats the token: %v", err)
		}
	}
}

func TestPatterns(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern, queue string
		want           bool
	}{
		{"pay", "pay", true}, {"pay", "pays", false}, {"pay*", "pay", true}, {"pay*", "pay.in", true}, {"*.in", "pay.in", true},
		{"*", "anything", true}, {"p*y", "pay.y", true}, {"p*y", "pax", false}, {"**", "x", true}, {"pay*", "", false},
		{"pay*", "PAY", false}, {"pay*", "pay/../x", false}, {"a*b*c*d*", strings.Repeat("a", 10_000), false},
	} {
		s, err := newScope([]string{c.pattern})
		if err != nil {
			t.Fatal(err)
		}
		if got := s.holds(c.queue); got != c.want {
			t.Errorf("%q holds %.20q: %v", c.pattern, c.queue, got)
		}
	}
}

// TestWatchReadsAndEnds: a change is acted on by a pass, and Watch ends with its context.
func TestWatchReadsAndEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		Watch(ctx, accessOf(t, "certificates: [{name: n, subject: 'cn:x', grants: {viewer: ['*']}}]"))
	}()
	cancel()
	<-ended
}

// TestACertificateRunsOutWhileItsConnectionLives: the handshake is long over then.
func TestACertificateRunsOutWhileItsConnectionLives(t *testing.T) {
	t.Parallel()
	a := accessOf(t, "certificates: [{name: n, subject: 'cn:x', grants: {viewer: ['*']}}]")
	end := time.Now().Add(time.Hour)
	shown := &x509.Certificate{Subject: pkix.Name{CommonName: "x"}, NotBefore: end.Add(-2 * time.Hour), NotAfter: end}
	if id, err := a.Authenticate(t.Context(), "", shown); err != nil || id.Name != "n" {
		t.Errorf("got %+v, %v", id, err)
	}
	a.now = func() time.Time { return end.Add(time.Second) }
	if _, err := a.Authenticate(t.Context(), "", shown); err == nil || !strings.Contains(err.Error(), "valid from") {
		t.Errorf("behind its end: %v", err)
	}
}

func TestNobodyAndAnyone(t *testing.T) {
	t.Parallel()
	for role := range roleNames {
		if Nobody().May(role, "q") || Nobody().Somewhere(role) || !Anyone().May(role, "q") || !Anyone().Everywhere(role) {
			t.Errorf("%v", role)
		}
	}
	if Nobody().SeesContents("q") || !Anyone().SeesContentsEverywhere() {
		t.Error("contents")
	}
	if _, err := accessOf(t, "certificates: [{name: n, subject: 'cn:x', grants: {viewer: ['*']}}]").Authenticate(t.Context(), "", nil); !isMissing(err) {
		t.Errorf("got %v", err)
	}
}

func isMissing(err error) bool {
	_, is := errors.AsType[*MissingError](err)
	return is
}
