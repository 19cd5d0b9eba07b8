package identity

import (
	"context"
	"crypto/x509"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// reloadEvery is how often files are looked at: how long a token that was taken out of the
// access file is still good, at most.
const reloadEvery = 5 * time.Second

// Access decides who calls, by an access file that may change at any time.
type Access struct {
	path string
	log  *slog.Logger
	now  func() time.Time

	current atomic.Pointer[state]
	read    lastRead
}

// state is one reading of the access file.
type state struct {
	*entries
	issuers  []*issuer
	limiters map[string]*rate.Limiter
}

// OpenAccess reads an access file; a bad one is an error with all its faults. Run follows its
// changes.
func OpenAccess(ctx context.Context, path string, log *slog.Logger) (*Access, error) {
	return openAccess(ctx, path, log, time.Now)
}

func openAccess(ctx context.Context, path string, log *slog.Logger, now func() time.Time) (*Access, error) {
	a := &Access{path: path, log: log, now: now}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	a.read.changed(text)
	s, err := a.parse(text)
	if err != nil {
		return nil, &FileError{Path: path, Err: err}
	}
	a.current.Store(s)
	a.findIssuers(ctx)
	return a, nil
}

// FileError is a file that cannot be used.
type FileError struct {
	Path string
	Err  error
}

func (e *FileError) Error() string { return e.Path + " " + e.Err.Error() }
func (e *FileError) Unwrap() error { return e.Err }

func (a *Access) parse(text []byte) (*state, error) {
	parsed, err := parseAccess(text)
	if err != nil {
		return nil, err
	}
	s := &state{entries: parsed, limiters: map[string]*rate.Limiter{}}
	old := a.current.Load()
	for i := range parsed.issuers {
		iss, err := a.issuer(old, &parsed.issuers[i])
		if err != nil {
			return nil, err
		}
		s.issuers = append(s.issuers, iss)
	}
	for _, id := range parsed.tokens {
		s.keepLimiter(old, id)
	}
	for _, id := range parsed.certificates {
		s.keepLimiter(old, id)
	}
	return s, nil
}

// keepLimiter gives entries of the same name and rate one limiter, also over a change of the
// file: a second token must not double a rate, nor a saved file refill it.
func (s *state) keepLimiter(old *state, id *Identity) {
	if id.limiter == nil {
		return
	}
	key := id.From + " " + id.Name
	known := s.limiters[key]
	if known == nil && old != nil {
		known = old.limiters[key]
	}
	if known != nil && known.Limit() == id.limiter.Limit() {
		id.limiter = known
	}
	s.limiters[key] = id.limiter
}

// reload reads the file where it has changed. A bad one is an error, once, and the last good
// one stays in force.
func (a *Access) reload(ctx context.Context) error {
	text, err := os.ReadFile(a.path)
	if !a.read.changed(append(text, errorText(err)...)) {
		return nil
	}
	if err != nil {
		return err
	}
	s, err := a.parse(text)
	if err != nil {
		return &FileError{Path: a.path, Err: err}
	}
	a.current.Store(s)
	a.log.InfoContext(ctx, "the access file was read again", "file", a.path,
		"tokens", len(s.tokens), "certificates", len(s.certificates), "issuers", len(s.issuers))
	return nil
}

// Pass looks at the file and at issuers that were away. It never fails: what is wrong is
// logged, and what was good stays.
func (a *Access) Pass(ctx context.Context) {
	if err := a.reload(ctx); err != nil {
		a.log.ErrorContext(ctx, "the access file is bad; the last good one stays in force", "file", a.path, "error", err)
	}
	a.findIssuers(ctx)
}

// findIssuers asks all at once: one that is away must not hold up the next look at the file.
func (a *Access) findIssuers(ctx context.Context) {
	var asked sync.WaitGroup
	for _, iss := range a.current.Load().issuers {
		asked.Go(func() {
			err := iss.find(ctx)
			if was := iss.away.Swap(err != nil); was == (err != nil) {
				return
			}
			if err != nil {
				a.log.WarnContext(ctx, "an issuer of JWTs does not answer; those whose key is not known are refused until it does", "issuer", iss.cfg.URL, "error", err)
			} else {
				a.log.InfoContext(ctx, "the issuer of JWTs answers again", "issuer", iss.cfg.URL)
			}
		})
	}
	asked.Wait()
}

// Authenticate finds the identity behind a bearer token (empty: none was shown) or a client
// certificate whose chain has been verified (nil: none). Errors: MissingError, InvalidError.
func (a *Access) Authenticate(ctx context.Context, token string, certificate *x509.Certificate) (*Identity, error) {
	s := a.current.Load()
	switch {
	case token != "":
		return a.byToken(ctx, s, token)
	case certificate != nil:
		return a.byCertificate(s, certificate)
	}
	return nil, &MissingError{}
}

func (a *Access) byToken(ctx context.Context, s *state, token string) (*Identity, error) {
	if id, known := s.tokens[hashOf(token)]; known {
		if !id.expires.IsZero() && !a.now().Before(id.expires) {
			return nil, &InvalidError{Kind: FromToken, Why: "it expired at " + id.expires.UTC().Format(time.RFC3339)}
		}
		return id, nil
	}
	if len(s.issuers) > 0 && strings.Count(token, ".") == 2 {
		return a.byJWT(ctx, s, token)
	}
	return nil, &InvalidError{Kind: FromToken, Why: "it is not known here, or no longer"}
}

// byCertificate takes the first name of the certificate that has an entry: URIs, then DNS
// names, then the common name. A connection may outlive its certificate, so the time is
// looked at with each call.
func (a *Access) byCertificate(s *state, c *x509.Certificate) (*Identity, error) {
	if now := a.now(); now.After(c.NotAfter) || now.Before(c.NotBefore) {
		return nil, &InvalidError{Kind: FromCertificate, Why: "it is valid from " + c.NotBefore.UTC().Format(time.RFC3339) + " to " + c.NotAfter.UTC().Format(time.RFC3339)}
	}
	for _, uri := range c.URIs {
		if id, known := s.certificates["uri:"+uri.String()]; known {
			return id, nil
		}
	}
	for _, name := range c.DNSNames {
		if id, known := s.certificates["dns:"+name]; known {
			return id, nil
		}
	}
	if id, known := s.certificates["cn:"+c.Subject.CommonName]; known {
		return id, nil
	}
	return nil, &InvalidError{Kind: FromCertificate, Why: "none of its names (URI, DNS, CN) has an entry in the access file"}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
