package identity

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// Where an identity comes from.
const (
	FromToken       = "token"
	FromCertificate = "certificate"
	FromJWT         = "jwt"
	FromNothing     = "nothing"
)

// Identity is who calls. It is not changed once made, and safe for concurrent use.
type Identity struct {
	// Name is for logs and records: that of the entry, or of a JWT's claim.
	Name string
	// From is one of the constants above.
	From string

	roles    map[pb.Role]scope
	contents scope // where it sees payloads, results, checkpoints and details of errors
	limiter  *rate.Limiter
	maxBytes int
	expires  time.Time // zero: never
}

// Anyone is the identity of every caller where there is no authentication: it may do all.
func Anyone() *Identity {
	everywhere := scope{all: true}
	id := &Identity{Name: "anyone", From: FromNothing, contents: everywhere, roles: map[pb.Role]scope{}}
	for role := range roleNames {
		id.roles[role] = everywhere
	}
	return id
}

// Nobody may do nothing. It stands for a call that passed no authentication.
func Nobody() *Identity { return &Identity{Name: "nobody", From: FromNothing} }

// May tells whether it has a role on a queue.
func (id *Identity) May(role pb.Role, queue string) bool { return id.roles[role].holds(queue) }

// Somewhere tells whether it has a role on any queue.
func (id *Identity) Somewhere(role pb.Role) bool {
	s := id.roles[role]
	return s.all || len(s.patterns) > 0
}

// Everywhere tells whether it has a role on all queues, also those that do not exist yet.
func (id *Identity) Everywhere(role pb.Role) bool { return id.roles[role].all }

// Only is the one queue on which it has a role; false where there are several, or may be.
func (id *Identity) Only(role pb.Role) (queue string, one bool) {
	s := id.roles[role]
	if s.all || len(s.patterns) != 1 || strings.Contains(s.patterns[0], "*") {
		return "", false
	}
	return s.patterns[0], true
}

// SeesContents tells whether it may see payloads, headers, results, checkpoints and the
// details of errors of the jobs of a queue.
func (id *Identity) SeesContents(queue string) bool { return id.contents.holds(queue) }

// SeesContentsEverywhere tells the same of all queues.
func (id *Identity) SeesContentsEverywhere() bool { return id.contents.all }

// MaxRequestBytes bounds the size of one request; 0: no bound of its own.
func (id *Identity) MaxRequestBytes() int { return id.maxBytes }

// Admit takes one call from its rate; above it, the result is how long to wait.
func (id *Identity) Admit(now time.Time) (wait time.Duration, ok bool) {
	if id.limiter == nil {
		return 0, true
	}
	r := id.limiter.ReserveN(now, 1)
	if wait := r.DelayFrom(now); wait > 0 {
		r.CancelAt(now)
		return wait, false
	}
	return 0, true
}

// scope is a set of queues, by patterns.
type scope struct {
	all      bool
	patterns []string
}

func (s scope) holds(queue string) bool {
	return s.all || slices.ContainsFunc(s.patterns, func(p string) bool {
		is, err := path.Match(p, queue) // patterns are checked when they are read
		return is && err == nil
	})
}

func (s scope) and(other scope) scope {
	out := scope{all: s.all || other.all, patterns: slices.Concat(s.patterns, other.patterns)}
	slices.Sort(out.patterns)
	out.patterns = slices.Compact(out.patterns)
	return out
}

// patternForm is a name of a queue in which * stands for any characters, also none.
var patternForm = regexp.MustCompile(`^[a-z0-9*][a-z0-9._*-]{0,127}$`)

func newScope(patterns []string) (scope, error) {
	var s scope
	for _, p := range patterns {
		switch {
		case p == "*":
			s.all = true
		case !patternForm.MatchString(p):
			return scope{}, fmt.Errorf("%q is no pattern of queues: a name [a-z0-9][a-z0-9._-]{0,127}, in which * stands for any characters", p)
		default:
			s.patterns = append(s.patterns, p)
		}
	}
	if !s.all && len(s.patterns) == 0 {
		return scope{}, fmt.Errorf(`needs at least one pattern of queues; "*" is all`)
	}
	return s, nil
}

// roleNames are the words for roles in files and on the command line.
var roleNames = map[pb.Role]string{
	pb.Role_ROLE_PRODUCER: "producer",
	pb.Role_ROLE_WORKER:   "worker",
	pb.Role_ROLE_OPERATOR: "operator",
	pb.Role_ROLE_VIEWER:   "viewer",
}

func roleOf(word string) (pb.Role, bool) {
	for role, name := range roleNames {
		if name == word {
			return role, true
		}
	}
	return 0, false
}

// included are the roles that a role brings along (options.proto).
var included = map[pb.Role][]pb.Role{
	pb.Role_ROLE_OPERATOR: {pb.Role_ROLE_VIEWER, pb.Role_ROLE_PRODUCER},
}
