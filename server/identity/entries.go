package identity

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"golang.org/x/time/rate"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

const (
	// maxFileBytes bounds the access file; ten thousand tokens have about 2 MB.
	maxFileBytes = 8 << 20
	// maxNameBytes bounds names, which stand in every log line.
	maxNameBytes = 128
	maxRate      = 1e6
)

// accessFile is the access file as it is written. docs/security.md documents it.
type accessFile struct {
	Tokens       []tokenEntry       `yaml:"tokens"`
	Certificates []certificateEntry `yaml:"certificates"`
	Issuers      []issuerEntry      `yaml:"issuers"`
}

// rights is what an entry of any kind gives.
type rights struct {
	Grants   map[string][]string `yaml:"grants"`
	Payloads bool                `yaml:"payloads,omitempty"`
	// CallsPerSecond and MaxRequestBytes are limits; 0: none.
	CallsPerSecond  float64 `yaml:"calls_per_second,omitempty"`
	MaxRequestBytes int     `yaml:"max_request_bytes,omitempty"`
}

type tokenEntry struct {
	Name    string    `yaml:"name"`
	SHA256  string    `yaml:"sha256"`
	Expires time.Time `yaml:"expires,omitempty"`
	rights  `yaml:",inline"`
}

type certificateEntry struct {
	Name string `yaml:"name"`
	// Subject is uri:…, dns:… or cn:….
	Subject string `yaml:"subject"`
	rights  `yaml:",inline"`
}

type issuerEntry struct {
	URL       string `yaml:"url"`
	Audience  string `yaml:"audience"`
	CAFile    string `yaml:"ca_file,omitempty"`
	NameClaim string `yaml:"name_claim,omitempty"`
	// Rules give rights; those of all that fit are added up.
	Rules []ruleEntry `yaml:"rules"`
}

type ruleEntry struct {
	Claim  string `yaml:"claim"`
	Value  string `yaml:"value"`
	rights `yaml:",inline"`
}

// entries is an access file that was found good.
type entries struct {
	tokens       map[[32]byte]*Identity
	certificates map[string]*Identity
	issuers      []issuerEntry
}

// parseAccess reads an access file. All its faults are joined, each with its place; none
// repeats what could be a secret pasted into the wrong field.
func parseAccess(text []byte) (*entries, error) {
	if len(text) > maxFileBytes {
		return nil, fmt.Errorf("has %d bytes, at most %d are read", len(text), maxFileBytes)
	}
	var file accessFile
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(&file); err != nil && !errors.Is(err, io.EOF) {
		return nil, errors.New("is not an access file: " + yamlFault(err))
	}
	e := &entries{tokens: map[[32]byte]*Identity{}, certificates: map[string]*Identity{}, issuers: file.Issuers}
	var faults []error
	fault := func(kind string, i int, err error) {
		if err != nil {
			faults = append(faults, fmt.Errorf("%s[%d]: %w", kind, i, err))
		}
	}
	for i := range file.Tokens {
		fault("tokens", i, e.addToken(&file.Tokens[i]))
	}
	for i := range file.Certificates {
		fault("certificates", i, e.addCertificate(&file.Certificates[i]))
	}
	for i := range file.Issuers {
		fault("issuers", i, file.Issuers[i].check())
	}
	if len(e.tokens)+len(e.certificates)+len(e.issuers) == 0 && len(faults) == 0 {
		faults = append(faults, errors.New("has no entry: nobody could call"))
	}
	return e, errors.Join(faults...)
}

func (e *entries) addToken(t *tokenEntry) error {
	sum, err := hex.DecodeString(t.SHA256)
	if err != nil || len(sum) != 32 {
		return errors.New("sha256 must be the SHA-256 of the token, 64 hexadecimal digits; make one: leasehold token new")
	}
	id, err := t.identity(t.Name, FromToken)
	if err != nil {
		return err
	}
	id.expires = t.Expires
	if _, twice := e.tokens[[32]byte(sum)]; twice {
		return errors.New("the same sha256 stands in another entry")
	}
	e.tokens[[32]byte(sum)] = id
	return nil
}

func (e *entries) addCertificate(c *certificateEntry) error {
	kind, value, _ := strings.Cut(c.Subject, ":")
	if !slices.Contains([]string{"uri", "dns", "cn"}, kind) || value == "" {
		return errors.New("subject must be uri:…, dns:… or cn:…, as it stands in the certificate")
	}
	id, err := c.identity(c.Name, FromCertificate)
	if err != nil {
		return err
	}
	if _, twice := e.certificates[c.Subject]; twice {
		return errors.New("the same subject stands in another entry")
	}
	e.certificates[c.Subject] = id
	return nil
}

// identity makes an Identity of rights. Its rate is set by those who keep the limiters.
func (r rights) identity(name, from string) (*Identity, error) {
	if name == "" || len(name) > maxNameBytes || strings.ContainsFunc(name, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		return nil, fmt.Errorf("name must have 1..%d bytes without control characters", maxNameBytes)
	}
	if r.CallsPerSecond < 0 || r.CallsPerSecond > maxRate {
		return nil, fmt.Errorf("calls_per_second must be 0 (no limit) .. %d", int(maxRate))
	}
	if r.MaxRequestBytes < 0 {
		return nil, errors.New("max_request_bytes must not be negative; 0 is no limit")
	}
	id := &Identity{Name: name, From: from, roles: map[pb.Role]scope{}, maxBytes: r.MaxRequestBytes}
	if len(r.Grants) == 0 {
		return nil, errors.New("grants must name at least one role with its queues")
	}
	for _, word := range slices.Sorted(maps.Keys(r.Grants)) {
		role, known := roleOf(word)
		if !known {
			return nil, fmt.Errorf("grants: %q is no role: producer, worker, operator or viewer", cutName(word))
		}
		s, err := newScope(r.Grants[word])
		if err != nil {
			return nil, fmt.Errorf("grants: %s: %w", word, err)
		}
		id.grant(role, s)
	}
	if r.Payloads {
		id.contents = id.contents.and(id.roles[pb.Role_ROLE_VIEWER])
	}
	if r.CallsPerSecond > 0 {
		id.limiter = newLimiter(r.CallsPerSecond)
	}
	return id, nil
}

// grant adds a role with all that it includes.
func (id *Identity) grant(role pb.Role, s scope) {
	id.roles[role] = id.roles[role].and(s)
	for _, other := range included[role] {
		id.roles[other] = id.roles[other].and(s)
	}
	if role == pb.Role_ROLE_OPERATOR {
		id.contents = id.contents.and(s)
	}
}

// newLimiter lets a second's worth of calls come at once, at least one.
func newLimiter(perSecond float64) *rate.Limiter {
	return rate.NewLimiter(rate.Limit(perSecond), max(1, int(perSecond)))
}

// yamlFault is what is wrong with a file, by lines and names of fields only: the library's
// own text repeats values, and a value may be a token that somebody pasted unhashed.
func yamlFault(err error) string {
	broken, is := errors.AsType[*yaml.TypeError](err)
	if !is {
		return lineOf(err.Error())
	}
	var lines []string
	for _, text := range broken.Errors {
		lines = append(lines, lineOf(text))
	}
	return strings.Join(slices.Compact(lines), "; ")
}

func lineOf(text string) string {
	if at := strings.Index(text, "line "); at >= 0 {
		number, _, _ := strings.Cut(text[at+len("line "):], ":")
		if field, _, is := strings.Cut(text, " not found in type"); is {
			if _, name, has := strings.Cut(field, "field "); has {
				return "line " + number + ": there is no field " + cutName(name)
			}
		}
		return "line " + number + ": is not what stands there in docs/security.md"
	}
	return "it is not YAML"
}

// cutName keeps what is quoted of a file to the length of a word: a whole token never fits.
func cutName(s string) string {
	const most = 24
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}
