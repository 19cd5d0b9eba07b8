package identity

import (
	"slices"
	"strings"
	"sync"

	"golang.org/x/time/rate"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// identity maps claims to rights: those of all rules that fit, added up. It is nil where none
// fits, or where the claim of the name is no text.
func (i *issuer) identity(claims map[string]any) *Identity {
	claim := i.cfg.NameClaim
	if claim == "" {
		claim = "sub"
	}
	name, _ := claimAt(claims, claim).(string)
	id := &Identity{Name: cleanName(name), From: FromJWT, roles: map[pb.Role]scope{}}
	if id.Name == "" {
		return nil
	}
	some, perSecond := false, 0.0
	for _, rule := range i.cfg.Rules {
		if !holds(claimAt(claims, rule.Claim), rule.Claim, rule.Value) {
			continue
		}
		part, err := rule.identity(id.Name, FromJWT)
		if err != nil {
			continue // the rules have been checked with another name; this one is clean
		}
		some = true
		for role, s := range part.roles {
			id.roles[role] = id.roles[role].and(s)
		}
		id.contents = id.contents.and(part.contents)
		// The tightest limit of the rules that fit, so that a further group never lifts one.
		perSecond = tightest(perSecond, rule.CallsPerSecond)
		id.maxBytes = tightest(id.maxBytes, part.maxBytes)
	}
	if !some {
		return nil
	}
	if perSecond > 0 {
		id.limiter = i.limiters.of(id.Name, perSecond)
	}
	return id
}

// tightest is the smaller of two limits, of which 0 is none.
func tightest[N int | float64](a, b N) N {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// claimAt finds a claim by its name, which may be a URL with dots, or by its path, as in
// realm_access.roles.
func claimAt(claims map[string]any, name string) any {
	if value, is := claims[name]; is {
		return value
	}
	var at any = claims
	for part := range strings.SplitSeq(name, ".") {
		object, is := at.(map[string]any)
		if !is {
			return nil
		}
		at = object[part]
	}
	return at
}

// holds tells whether a claim is a value, or a list that has it. A scope is a list in one
// text, with spaces (RFC 8693).
func holds(claim any, name, value string) bool {
	switch c := claim.(type) {
	case string:
		return c == value || name == "scope" && slices.Contains(strings.Fields(c), value)
	case []any:
		return slices.Contains(c, any(value))
	}
	return false
}

// cleanName makes a claim fit for logs.
func cleanName(name string) string {
	name = strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f {
			return -1
		}
		return c
	}, strings.ToValidUTF8(name, ""))
	if len(name) > maxNameBytes {
		name = strings.ToValidUTF8(name[:maxNameBytes], "")
	}
	return name
}

// limiters are those of the names of an issuer, so that a new JWT does not refill a rate.
type limiters struct {
	mu     sync.Mutex
	byName map[string]*rate.Limiter
}

func (l *limiters) of(name string, perSecond float64) *rate.Limiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known := l.byName[name]; known != nil && known.Limit() == rate.Limit(perSecond) {
		return known
	}
	if len(l.byName) >= maxVerdicts {
		clear(l.byName)
	}
	l.byName[name] = newLimiter(perSecond)
	return l.byName[name]
}
