package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/pflag"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/internal/doctest"
)

// TestSidecarSaysWhatIsWrong with its flags, all at once.
func TestSidecarSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	code, _, said := runIn(t, nil, "sidecar", "--listen", "0.0.0.0:7070", "--http", "x", "--upstream", "nowhere,b:70707",
		"--tls-cert", "c", "--token-file", "t", "--socket-mode", "9", "--drain-timeout", "2h", "--log-level", "loud", "--log-format", "xml")
	if code != exitUsage {
		t.Errorf("exit code %d", code)
	}
	for _, want := range []string{
		"--listen must be unix:PATH or an address of loopback", "--http: must be host:port", `--upstream: must be host:port or unix:PATH, got "nowhere"`,
		"--upstream: the port must be 0..65535", "--tls-cert and --tls-key belong together", "--token-file needs --tls-ca", "--socket-mode must be octal",
		"--drain-timeout must be 0..1h", "--log-level", "--log-format must be",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("it does not say %q:\n%s", want, said)
		}
	}
	if code, _, said := runIn(t, nil, "sidecar", "--upstream", "dns:///a:1,dns:///b:1"); code != exitUsage || !strings.Contains(said, "must stand alone") {
		t.Errorf("targets in a list: %d %s", code, said)
	}
	if code, _, said := runIn(t, nil, "sidecar"); code != exitUsage || !strings.Contains(said, "--upstream is missing") {
		t.Errorf("without --upstream: %d %s", code, said)
	}
}

// TestSidecarBeforeAService: over TLS with a token, to a service whose queue the caller's own
// token could not use; a socket with its permissions; ready as the service is.
func TestSidecarBeforeAService(t *testing.T) {
	t.Parallel()
	s := beginSecuredPlainly(t)
	token := s.token(t, "beside", "producer", "worker", "operator")
	dir, err := os.MkdirTemp("", "lh-") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket, ready := filepath.Join(dir, "s"), filepath.Join(t.TempDir(), "ready")
	p := begin(t, nil, "sidecar", "--listen", "unix:"+socket, "--socket-mode", "0600", "--http", "127.0.0.1:0", "--ready-file", ready,
		"--upstream", s.address+","+s.address, "--tls-ca", s.ca, "--token-file", token)
	p.ready = ready
	address, httpAddress := p.addresses(t)
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != fs.FileMode(0o600) {
		t.Errorf("the socket: %v %v", info, err)
	}
	conn := dial(t, address)
	eventually(t, "the token is known", func() bool { // the access file is read every few seconds
		_, err := pb.NewQueueServiceClient(conn).CreateQueue(t.Context(), &pb.CreateQueueRequest{Queue: &pb.Queue{Name: "q"}})
		return err == nil
	})
	if _, err := pb.NewJobServiceClient(conn).Enqueue(t.Context(), &pb.EnqueueRequest{Queue: "q"}); err != nil {
		t.Fatal(err)
	}
	if code, body := get(t, "http://"+httpAddress+"/readyz"); code != 200 {
		t.Errorf("ready: %d %s", code, body)
	}
	s.signal(t, syscall.SIGTERM)
	s.mustExit(t, 0)
	eventually(t, "not ready without the service", func() bool { code, _ := get(t, "http://"+httpAddress+"/readyz"); return code == 503 })
	if code, _ := get(t, "http://"+httpAddress+"/healthz"); code != 200 {
		t.Errorf("healthy: %d", code)
	}
	conn.Close()
	p.signal(t, syscall.SIGTERM)
	p.mustExit(t, 0)
	if _, err := os.Stat(socket); err == nil {
		t.Error("the socket is still there")
	}
}

// TestGuideListsTheSidecarsFlags: every flag, with its default.
func TestGuideListsTheSidecarsFlags(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(doctest.Root(t), "docs", "sidecar.md"))
	if err != nil {
		t.Fatal(err)
	}
	newSidecar(streams{}, nil).Flags().VisitAll(func(f *pflag.Flag) {
		if !strings.Contains(string(text), "`--"+f.Name+"`") {
			t.Errorf("docs/sidecar.md does not have --%s", f.Name)
		}
	})
}
