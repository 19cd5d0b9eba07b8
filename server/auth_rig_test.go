package server

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/internal/testca"
	"github.com/leasehold/leasehold/server/identity"
	"github.com/leasehold/leasehold/store"
)

// secured is a server over real TLS with an access file.
type secured struct {
	*Server
	ca         *testca.CA
	address    string
	accessFile string
	access     *identity.Access
	certs      *identity.Certificates
	certDir    string
	logs       *logLines
	lines      []string // of the access file, below tokens:
	rest       string   // of the access file
}

// serveSecured starts a server over TLS in front of st. rest is what the access file has
// beside the tokens.
func serveSecured(t *testing.T, st store.Store, rest string) *secured {
	t.Helper()
	s := &secured{ca: testca.New(t, "authority"), logs: &logLines{}, rest: rest, certDir: t.TempDir(), accessFile: filepath.Join(t.TempDir(), "access.yaml")}
	log := s.logs.logger(slog.LevelDebug)
	cert, key := s.ca.Cert(t, s.certDir, testca.Spec{CN: "service"})
	var err error
	if s.certs, err = identity.OpenCertificates(identity.CertificateFiles{Cert: cert, Key: key, ClientCA: s.ca.File}, log); err != nil {
		t.Fatal(err)
	}
	s.entry(t, identity.NewToken{Name: "somebody", Roles: []string{"viewer"}, Queues: []string{"nowhere"}})
	if s.access, err = identity.OpenAccess(t.Context(), s.accessFile, log); err != nil {
		t.Fatal(err)
	}
	s.Server, err = New(t.Context(), st, Config{
		Log: log, Access: s.access, Transport: credentials.NewTLS(s.certs.ServerConfig()),
	})
	if err != nil {
		t.Fatal(err)
	}
	s.SetServing(true)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.address = l.Addr().String()
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() {
		stopped, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := s.Drain(stopped); err != nil {
			t.Errorf("drain: %v", err)
		}
		if err := <-ended; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return s
}

// entry adds a token to the access file and returns it.
func (s *secured) entry(t *testing.T, n identity.NewToken) string {
	t.Helper()
	token, line, err := n.Make()
	if err != nil {
		t.Fatal(err)
	}
	s.lines = append(s.lines, line)
	s.write(t)
	return token
}

// token adds a token, and the server reads it.
func (s *secured) token(t *testing.T, role string, queues ...string) string {
	t.Helper()
	token := s.entry(t, identity.NewToken{Name: role + " of " + strings.Join(queues, " "), Roles: []string{role}, Queues: queues})
	s.access.Pass(t.Context())
	return token
}

func (s *secured) write(t *testing.T) {
	t.Helper()
	text := "tokens:\n" + strings.Join(s.lines, "\n") + "\n" + s.rest
	if err := os.WriteFile(s.accessFile, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// bearer sends a token with each call.
type bearer string

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}
func (bearer) RequireTransportSecurity() bool { return true }

// api are the clients of one connection.
type api struct {
	conn   *grpc.ClientConn
	leases pb.LeaseServiceClient
	jobs   pb.JobServiceClient
	queues pb.QueueServiceClient
}

// as connects with a token; an empty one is none.
func (s *secured) as(t *testing.T, token string, pairs ...tls.Certificate) api {
	t.Helper()
	return s.with(t, &tls.Config{RootCAs: s.ca.Pool(), Certificates: pairs}, token)
}

func (s *secured) with(t *testing.T, cfg *tls.Config, token string) api {
	t.Helper()
	options := []grpc.DialOption{grpc.WithTransportCredentials(credentials.NewTLS(cfg))}
	if token != "" {
		options = append(options, grpc.WithPerRPCCredentials(bearer(token)))
	}
	conn, err := grpc.NewClient("passthrough:"+s.address, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return api{conn, pb.NewLeaseServiceClient(conn), pb.NewJobServiceClient(conn), pb.NewQueueServiceClient(conn)}
}

// refusedError is the error of an item, as that of a call.
func refusedError(e *pb.ItemError) error {
	if e == nil {
		return nil
	}
	return &itemRefusal{e}
}

type itemRefusal struct{ item *pb.ItemError }

func (e *itemRefusal) Error() string {
	return fmt.Sprintf("%v %s", e.item.GetReason(), e.item.GetMessage())
}

// refusal is reason, code and facts of an error of a call or an item; OK where it is nil.
func refusal(err error) (reason string, code codes.Code, facts map[string]string) {
	if err == nil {
		return "OK", codes.OK, nil
	}
	if item, ok := err.(*itemRefusal); ok { //nolint:errorlint // it is never wrapped: a test makes it
		return reasonWord(item.item.GetReason()), codes.Code(item.item.GetCode()), item.item.GetMetadata()
	}
	return reasonOf(err), status.Code(err), factsOf(err)
}
