package identity

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// tokenPrefix makes tokens known to scanners of secrets, and to people.
const tokenPrefix = "lh_"

// NewToken is a request for a bearer token.
type NewToken struct {
	Name     string
	Roles    []string // producer, worker, operator, viewer; at least one
	Queues   []string // patterns, for all the roles; at least one
	Payloads bool     // a viewer sees payloads
	Expires  time.Time
}

// Make draws a token of 256 random bits, and the entry for the access file, one line of YAML
// below tokens. The token itself is nowhere but in the result.
func (n NewToken) Make() (token, entry string, err error) {
	if len(n.Roles) == 0 {
		return "", "", errors.New("at least one role is needed: producer, worker, operator or viewer")
	}
	var secret [32]byte
	_, _ = rand.Read(secret[:]) // never fails, see its documentation
	token = tokenPrefix + base64.RawURLEncoding.EncodeToString(secret[:])
	sum := hashOf(token)
	t := tokenEntry{Name: n.Name, SHA256: hex.EncodeToString(sum[:]), Expires: n.Expires.UTC().Truncate(time.Second)}
	t.Grants, t.Payloads = map[string][]string{}, n.Payloads
	for _, role := range n.Roles {
		t.Grants[role] = n.Queues
	}
	if _, err := t.identity(t.Name, FromToken); err != nil {
		return "", "", err
	}
	entry, err = t.line()
	return token, entry, err
}

// line is an entry as one line of a list, which an editor or a script can append.
func (t tokenEntry) line() (string, error) {
	var node yaml.Node
	if err := node.Encode([]tokenEntry{t}); err != nil {
		return "", err
	}
	for _, item := range node.Content {
		item.Style = yaml.FlowStyle
	}
	text, err := yaml.Marshal(&node)
	if err != nil {
		return "", err
	}
	// The encoder folds long lines; in flow style a line break is a space.
	return strings.Join(strings.Fields(string(text)), " "), nil
}

// hashOf is what is kept of a token. Tokens are random, so that one plain SHA-256 is enough:
// nobody finds 256 random bits by trying, as they would a password.
func hashOf(token string) [32]byte { return sha256.Sum256([]byte(token)) }
