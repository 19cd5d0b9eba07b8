package server

import (
	"context"
	"crypto/tls"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/internal/testca"
	"github.com/leasehold/leasehold/server/identity"
)

// certificateEntries gives the queue q to a few names.
const certificateEntries = `
certificates:
  - {name: by-uri, subject: "uri:spiffe://example.org/worker", grants: {viewer: [q]}}
  - {name: by-dns, subject: "dns:worker.example.org", grants: {viewer: [q]}}
  - {name: by-cn, subject: "cn:worker", grants: {viewer: [q]}}
`

func (a api) getQueue(t *testing.T, name string) error {
	t.Helper()
	_, err := a.queues.GetQueue(t.Context(), &pb.GetQueueRequest{Name: name})
	return err
}

// wantRefusal demands code, reason and a word of the message.
func wantRefusal(t *testing.T, what string, err error, code codes.Code, reason, word string) {
	t.Helper()
	if status.Code(err) != code || reasonOf(err) != reason || !strings.Contains(status.Convert(err).Message(), word) {
		t.Errorf("%s: got %v (reason %q), want %v %s with %q", what, err, reasonOf(err), code, reason, word)
	}
}

func TestClientCertificates(t *testing.T) {
	s := serveSecured(t, newStore(t, "q"), certificateEntries)
	for name, spec := range map[string]testca.Spec{
		"by URI": {URI: "spiffe://example.org/worker", CN: "x"}, "by DNS": {DNS: []string{"other", "worker.example.org"}}, "by CN": {CN: "worker"},
	} {
		caller := s.as(t, "", s.ca.Pair(t, spec))
		if err := caller.getQueue(t, "q"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		wantRefusal(t, name+", another queue", caller.getQueue(t, "other"), codes.PermissionDenied, "ROLE_MISSING", `VIEWER on queue "other"`)
	}
	stranger := s.as(t, "", s.ca.Pair(t, testca.Spec{CN: "stranger"}))
	wantRefusal(t, "no entry", stranger.getQueue(t, "q"), codes.Unauthenticated, "CREDENTIALS_INVALID", "no")
	none := s.as(t, "")
	wantRefusal(t, "no certificate", none.getQueue(t, "q"), codes.Unauthenticated, "CREDENTIALS_MISSING", "client certificate")
}

// handshake connects without gRPC, whose first write may come before it reads why it was
// turned away: that is all it tells then.
func (s *secured) handshake(t *testing.T, cfg *tls.Config) error {
	t.Helper()
	cfg = cfg.Clone()
	cfg.NextProtos = []string{"h2"}
	conn, err := tls.Dial("tcp", s.address, cfg)
	if err != nil {
		return err
	}
	// The client's certificate is looked at behind the client's own end of the handshake. A
	// server that has taken it begins to speak.
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 1))
	_ = conn.Close() // it has served its purpose
	return err
}

// TestHandshakesThatFail: what TLS itself refuses, with the reason at the client, as far as TLS
// has one, and in the log.
func TestHandshakesThatFail(t *testing.T) {
	s := serveSecured(t, newStore(t, "q"), certificateEntries)
	wrong := testca.New(t, "stranger")
	worker := testca.Spec{CN: "worker"}
	expired := testca.Spec{CN: "worker", From: time.Now().Add(-2 * time.Hour), To: time.Now().Add(-time.Hour)}
	future := testca.Spec{CN: "worker", From: time.Now().Add(time.Hour), To: time.Now().Add(2 * time.Hour)}
	for name, c := range map[string]struct {
		cfg          *tls.Config
		client, says string
	}{
		"expired":               {&tls.Config{RootCAs: s.ca.Pool(), Certificates: []tls.Certificate{s.ca.Pair(t, expired)}}, "expired certificate", "expired"},
		"not yet valid":         {&tls.Config{RootCAs: s.ca.Pool(), Certificates: []tls.Certificate{s.ca.Pair(t, future)}}, "expired certificate", "not yet valid"},
		"wrong CA of client":    {&tls.Config{RootCAs: s.ca.Pool(), Certificates: []tls.Certificate{wrong.Pair(t, worker)}}, "unknown certificate authority", "unknown authority"},
		"wrong CA of service":   {&tls.Config{RootCAs: wrong.Pool()}, "unknown authority", "bad certificate"},
		"another service":       {&tls.Config{RootCAs: s.ca.Pool(), ServerName: "elsewhere.example.org"}, "elsewhere.example.org", "bad certificate"},
		"a TLS of the past":     {&tls.Config{RootCAs: s.ca.Pool(), MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10}, "protocol version", "unsupported versions"},
		"expired, with a token": {&tls.Config{RootCAs: s.ca.Pool(), Certificates: []tls.Certificate{s.ca.Pair(t, expired)}}, "expired certificate", "expired"},
	} {
		// A client that must send its certificate only when asked would hide it: this one always does.
		if len(c.cfg.Certificates) > 0 {
			pair := c.cfg.Certificates[0]
			c.cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
		}
		if err := s.handshake(t, c.cfg); err == nil || !strings.Contains(err.Error(), c.client) {
			t.Errorf("%s: the client sees %v, want %q", name, err, c.client)
		}
		if err := s.with(t, c.cfg, "").getQueue(t, "q"); status.Code(err) != codes.Unavailable {
			t.Errorf("%s: a call ends with %v", name, err)
		}
		eventually(t, name+": a line with "+c.says, func() bool { return strings.Contains(s.logs.text(), c.says) })
	}
}

func TestTokens(t *testing.T) {
	s := serveSecured(t, newStore(t, "q"), "")
	good := s.token(t, "viewer", "q")
	expired := s.entry(t, identity.NewToken{Name: "old", Roles: []string{"viewer"}, Queues: []string{"q"}, Expires: time.Now().Add(-time.Minute)})
	s.access.Pass(t.Context())
	caller := s.as(t, good)
	if err := caller.getQueue(t, "q"); err != nil {
		t.Fatal(err)
	}
	wantRefusal(t, "of another queue", caller.getQueue(t, "other"), codes.PermissionDenied, "ROLE_MISSING", `VIEWER on queue "other"`)
	wantRefusal(t, "expired", s.as(t, expired).getQueue(t, "q"), codes.Unauthenticated, "CREDENTIALS_INVALID", "expired at")
	wantRefusal(t, "unknown", s.as(t, good+"x").getQueue(t, "q"), codes.Unauthenticated, "CREDENTIALS_INVALID", "not known")
	wantRefusal(t, "none", s.as(t, "").getQueue(t, "q"), codes.Unauthenticated, "CREDENTIALS_MISSING", "bearer token")
	worker := s.ca.Pair(t, testca.Spec{CN: "worker"})
	wantRefusal(t, "a bad token beside a certificate", s.as(t, "lh_bad", worker).getQueue(t, "q"), codes.Unauthenticated, "CREDENTIALS_INVALID", "not known")
	for _, values := range [][]string{{"Basic abc"}, {"Bearer"}, {"Bearer "}, {good}, {"Bearer " + good, "Bearer " + good}} {
		ctx := t.Context()
		for _, v := range values {
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", v)
		}
		_, err := s.as(t, "").queues.GetQueue(ctx, &pb.GetQueueRequest{Name: "q"})
		wantRefusal(t, "malformed", err, codes.Unauthenticated, "CREDENTIALS_INVALID", "must be one value")
	}
	// Revoked: its line is gone. The connection stays, the next call is refused.
	s.lines = s.lines[:1]
	s.write(t)
	s.access.Pass(t.Context())
	wantRefusal(t, "revoked", caller.getQueue(t, "q"), codes.Unauthenticated, "CREDENTIALS_INVALID", "no longer")
}

// TestRotationWithoutARestart: new certificates are used by the next handshake, connections
// that are there stay, and bad files change nothing.
func TestRotationWithoutARestart(t *testing.T) {
	s := serveSecured(t, newStore(t, "q"), "")
	token := s.token(t, "viewer", "q")
	caller := s.as(t, token)
	serial := func() string {
		conn, err := tls.Dial("tcp", s.address, &tls.Config{RootCAs: s.ca.Pool(), NextProtos: []string{"h2"}})
		if err != nil {
			t.Fatal(err)
		}
		shown := conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
		_ = conn.Close() // it has shown what it had to
		return shown
	}
	if err := caller.getQueue(t, "q"); err != nil {
		t.Fatal(err)
	}
	before := serial()
	cert, key := s.ca.Cert(t, s.certDir, testca.Spec{CN: "service"})
	s.certs.Pass(t.Context())
	after := serial()
	if after == before {
		t.Error("the old certificate is still shown")
	}
	if err := os.WriteFile(key, []byte("no key"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.certs.Pass(t.Context())
	s.certs.Pass(t.Context())
	if got := serial(); got != after {
		t.Error("a bad key changed the certificate")
	}
	if err := os.Remove(cert); err != nil {
		t.Fatal(err)
	}
	s.certs.Pass(t.Context())
	if got := serial(); got != after {
		t.Error("a file that is gone changed the certificate")
	}
	if err := caller.getQueue(t, "q"); err != nil {
		t.Errorf("the connection from before: %v", err)
	}
	if n := strings.Count(s.logs.text(), "the certificates are bad"); n != 2 {
		t.Errorf("%d lines about two bad changes", n)
	}
	if err := os.WriteFile(s.accessFile, []byte("tokens: [{name: "+token), 0o600); err != nil {
		t.Fatal(err)
	}
	s.access.Pass(t.Context())
	s.access.Pass(t.Context())
	if err := caller.getQueue(t, "q"); err != nil {
		t.Errorf("a bad access file: %v", err)
	}
	if text := s.logs.text(); strings.Count(text, "the access file is bad") != 1 || strings.Contains(text, token) {
		t.Errorf("logged:\n%s", text)
	}
}

// TestHealthIsOpenAndReflectionIsNot: probes have no credentials.
func TestHealthIsOpenAndReflectionIsNot(t *testing.T) {
	s := serveSecured(t, newStore(t), "")
	reflect := func(a api) error {
		stream, err := grpc_reflection_v1.NewServerReflectionClient(a.conn).ServerReflectionInfo(t.Context())
		if err != nil {
			return err
		}
		list := &grpc_reflection_v1.ServerReflectionRequest_ListServices{}
		if err := stream.Send(&grpc_reflection_v1.ServerReflectionRequest{MessageRequest: list}); err != nil {
			t.Log(err) // the answer says why
		}
		_, err = stream.Recv()
		return err
	}
	stranger := s.as(t, "")
	if _, err := grpc_health_v1.NewHealthClient(stranger.conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{}); err != nil {
		t.Errorf("health: %v", err)
	}
	wantRefusal(t, "reflection", reflect(stranger), codes.Unauthenticated, "CREDENTIALS_MISSING", "token")
	if err := reflect(s.as(t, s.token(t, "worker", "q"))); err != nil {
		t.Errorf("reflection with a token: %v", err)
	}
	off := serve(t, newStore(t), Config{NoReflection: true})
	if err := reflect(api{conn: off.conn}); status.Code(err) != codes.Unimplemented {
		t.Errorf("reflection that is off: %v", err)
	}
}

// TestLimitsOfAnIdentity: calls above its rate and requests above its size are refused, but
// never those that keep or end a lease.
func TestLimitsOfAnIdentity(t *testing.T) {
	s := serveSecured(t, newStore(t, "q"), "")
	admin := s.as(t, s.entry(t, adminToken))
	limitedToken, line, err := identity.NewToken{Name: "limited", Roles: []string{"worker", "producer"}, Queues: []string{"q"}}.Make()
	if err != nil {
		t.Fatal(err)
	}
	s.lines = append(s.lines, strings.TrimSuffix(line, "}")+", calls_per_second: 0.001, max_request_bytes: 100}")
	s.write(t)
	s.access.Pass(t.Context())
	caller, sc := s.as(t, limitedToken), scene{t, admin, "q"}
	enqueue := func(size int) error {
		_, err := caller.jobs.Enqueue(t.Context(), &pb.EnqueueRequest{Queue: "q", Payload: &pb.Payload{Content: &pb.Payload_Data{Data: make([]byte, size)}}})
		return err
	}
	wantRefusal(t, "too large", enqueue(200), codes.InvalidArgument, "TOO_LARGE", "at most 100 bytes for this identity")
	err = enqueue(1)
	wantRefusal(t, "too often", err, codes.ResourceExhausted, "RATE_LIMITED", "more often")
	if retryInfoOf(err) <= 0 {
		t.Error("no RetryInfo")
	}
	big := strings.Repeat("d", 500)
	for range 3 {
		lease := sc.token()
		_, beatErr := caller.leases.Heartbeat(t.Context(), &pb.HeartbeatRequest{LeaseToken: lease, Checkpoint: []byte(big)})
		_, failErr := caller.leases.Fail(t.Context(), &pb.FailRequest{LeaseToken: lease, Error: &pb.JobError{Message: "m", Details: big}})
		if err := firstError(beatErr, failErr); err != nil {
			t.Errorf("a call that keeps or ends a lease: %v", err)
		}
	}
	// A changed file must not refill the rate.
	s.entry(t, identity.NewToken{Name: "another", Roles: []string{"viewer"}, Queues: []string{"q"}})
	s.access.Pass(t.Context())
	wantRefusal(t, "after a change of the file", enqueue(1), codes.ResourceExhausted, "RATE_LIMITED", "more often")
}

// TestWithoutAnIdentityNothingIsAllowed: a call that came by the authentication although
// there is one has no rights.
func TestWithoutAnIdentityNothingIsAllowed(t *testing.T) {
	s := newHandlers(t, newStore(t, "q"), Config{Access: &identity.Access{}})
	none := func(context.Context, any) (any, error) { t.Error("the handler ran"); return nil, nil }
	for method := range requiredRoles {
		if _, err := s.authorized(t.Context(), &pb.GetQueueRequest{Name: "q"}, method, none); err == nil {
			t.Errorf("%s is allowed to nobody", method)
		}
	}
	if _, err := s.authorized(t.Context(), &pb.GetQueueRequest{Name: "q"}, "/leasehold.v1.QueueService/Undeclared", none); err == nil {
		t.Error("a method without a role is allowed")
	}
}

// TestAuditLog: one line for each act, with who, what, which queue and what came of it.
func TestAuditLog(t *testing.T) {
	s := serveSecured(t, newStore(t, "q", "r"), "")
	admin := s.as(t, s.entry(t, adminToken))
	ops := s.as(t, s.token(t, "operator", "q"))
	sc := scene{t, admin, "q"}
	dead, foreign := sc.dead(), scene{t, admin, "r"}.dead()
	_, pause := ops.queues.PauseQueue(t.Context(), &pb.PauseQueueRequest{Name: "q", Note: "planted note"})
	_, denied := ops.queues.DeleteQueue(t.Context(), &pb.DeleteQueueRequest{Name: "r"})
	_, retry := ops.queues.RetryJobs(t.Context(), &pb.RetryJobsRequest{Selection: &pb.JobSelection{JobIds: []string{dead, foreign}}, Actor: "alice", DryRun: true})
	_, cancel := ops.jobs.CancelJob(t.Context(), &pb.CancelJobRequest{JobId: sc.job()})
	if err := firstError(pause, retry, cancel); err != nil || reasonOf(denied) != "ROLE_MISSING" {
		t.Fatal(err, denied)
	}
	want := []map[string]any{
		{"act": "PauseQueue", "queue": "q", "outcome": "OK"},
		{"act": "DeleteQueue", "queue": "r", "outcome": "ROLE_MISSING"},
		{"act": "RetryJobs", "queue": "q,r", "outcome": "OK", "jobs": 1.0, "jobs_refused": 1.0, "dry_run": true, "stated_actor": "alice"},
		{"act": "CancelJob", "queue": "q", "outcome": "OK"},
	}
	lines := s.logs.lines(t, "audit")
	if len(lines) != len(want) {
		t.Fatalf("%d lines, want %d: %v", len(lines), len(want), lines)
	}
	for i, w := range want {
		w["identity"], w["identity_from"] = "operator of q", "token"
		for key, value := range w {
			if lines[i][key] != value {
				t.Errorf("line %d: %s is %v, want %v", i, key, lines[i][key], value)
			}
		}
	}
	if strings.Contains(s.logs.text(), "planted") {
		t.Error("the log has what only the record should have")
	}
	queue, err := admin.queues.GetQueue(t.Context(), &pb.GetQueueRequest{Name: "q"})
	if err != nil || queue.GetQueue().GetPausedBy() != "operator of q" {
		t.Errorf("paused by %q, %v", queue.GetQueue().GetPausedBy(), err)
	}
}
