package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

func TestTokenNew(t *testing.T) {
	t.Parallel()
	args := []string{"token", "new", "--name", "billing", "--role", "worker", "--queue", "pay*"}
	code, out, _ := runIn(t, nil, args...)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if code != exitDone || len(lines) != 4 || !strings.HasPrefix(lines[1], "lh_") || !strings.Contains(lines[3], "grants: {worker: [pay*]}") {
		t.Errorf("code %d:\n%s", code, out)
	}
	file := filepath.Join(t.TempDir(), "token")
	code, out, _ = runIn(t, nil, append(args, "--out", file, "--expires-in", "24h")...)
	text, err := os.ReadFile(file)
	if code != exitDone || err != nil || !strings.HasPrefix(string(text), "lh_") || strings.Contains(out, "lh_") || !strings.Contains(out, "expires:") {
		t.Errorf("code %d, file %q, %v:\n%s", code, text, err, out)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file is %v, %v", info, err)
	}
	if code, _, _ := runIn(t, nil, append(args, "--out", file)...); code != exitFailed {
		t.Errorf("a token that is there is overwritten: code %d", code)
	}
	for _, bad := range [][]string{{"--role", "root"}, {"--queue", "A B"}, {"--expires-in", "-1h"}} {
		if code, out, stderr := runIn(t, nil, append(args, bad...)...); code != exitUsage || out != "" || stderr == "" {
			t.Errorf("%v: code %d, %s%s", bad, code, out, stderr)
		}
	}
}

// TestDialToASecuredService as commands do it: by flags, with the token of a file, which may
// change while the connection lives.
func TestDialToASecuredService(t *testing.T) {
	t.Parallel()
	s := beginSecuredPlainly(t)
	get := func(tokenFile string) error {
		_, err := pb.NewQueueServiceClient(s.dial(t, tokenFile)).ListQueues(t.Context(), &pb.ListQueuesRequest{})
		return err
	}
	admin := filepath.Join(s.dir, "admin")
	if err := get(admin); err != nil {
		t.Fatal(err)
	}
	if err := get(""); status.Code(err) != codes.Unauthenticated {
		t.Errorf("without a token: %v", err)
	}
	// A token that is added, and one that is revoked, without a restart.
	viewer := s.token(t, "viewer", "viewer")
	eventually(t, "a new token that is known", func() bool { return get(viewer) == nil })
	conn := s.dial(t, viewer)
	s.lines = s.lines[:1]
	s.writeAccess(t)
	eventually(t, "a revoked token that is refused", func() bool {
		_, err := pb.NewQueueServiceClient(conn).ListQueues(t.Context(), &pb.ListQueuesRequest{})
		return status.Code(err) == codes.Unauthenticated
	})
	if err := get(admin); err != nil {
		t.Errorf("the token beside it: %v", err)
	}
}

func TestBadDials(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "missing")
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, c := range map[string]dialConfig{
		"--address":            {Address: "nowhere"},
		"belong together":      {Address: "h:1", TLSCA: caSystem, TLSCert: "c"},
		"needs --tls-ca: a":    {Address: "h:1", TLSCert: "c", TLSKey: "k"},
		"could read the token": {Address: "h:1", TokenFile: "t"},
		"--tls-ca":             {Address: "h:1", TLSCA: missing},
		"no certificate":       {Address: "h:1", TLSCA: empty},
		"--token-file":         {Address: "127.0.0.1:1", TokenFile: missing},
		"one token":            {Address: "127.0.0.1:1", TokenFile: empty},
		"--tls-cert":           {Address: "h:1", TLSCA: caSystem, TLSCert: missing, TLSKey: missing},
	} {
		if conn, err := c.dial(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got %v, %v, want %q", c, conn, err, want)
		}
	}
	for _, c := range []dialConfig{{Address: "unix:/tmp/s"}, {Address: "[::1]:1"}, {Address: "h:1", TLSCA: caSystem}} {
		conn, err := c.dial(t.Context())
		if err != nil {
			t.Errorf("%+v: %v", c, err)
			continue
		}
		conn.Close()
	}
}

// TestServeRefusesBadFilesOfSecurity before it touches the database.
func TestServeRefusesBadFilesOfSecurity(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad")
	if err := os.WriteFile(bad, []byte("tokens: [{name: x}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	const database = "--database-url=postgres://127.0.0.1:1/x"
	for want, args := range map[string][]string{
		"tokens[0]: sha256":  {"--access-file", bad},
		"no such file":       {"--access-file", filepath.Join(dir, "missing")},
		"--tls-cert: open":   {"--tls-cert", filepath.Join(dir, "missing"), "--tls-key", bad},
		"bad with the key":   {"--tls-cert", bad, "--tls-key", bad},
		"can be reached fro": {"--listen", ":0"},
	} {
		code, _, stderr := runIn(t, nil, append([]string{"serve", database}, args...)...)
		if code == exitDone || !strings.Contains(stderr, want) {
			t.Errorf("%v: code %d, %s", args, code, stderr)
		}
	}
}
