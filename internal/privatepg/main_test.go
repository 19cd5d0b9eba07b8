package privatepg

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
)

// childEnv makes the test binary a process that only owns a server: the tests
// kill it. Its value is the data directory, or childEphemeral.
const (
	childEnv       = "PRIVATEPG_TEST_CHILD"
	childEphemeral = "ephemeral"
	patience       = 30 * time.Second
)

func TestMain(m *testing.M) {
	if where := os.Getenv(childEnv); where != "" {
		os.Exit(ownServer(where))
	}
	goleak.VerifyTestMain(m)
}

// childReport is what the owner of a server tells the test.
type childReport struct {
	PID     int
	URL     string
	Runtime string
	Error   string
}

// ownServer starts a server and obeys its standard input: "freeze" freezes the
// server, the end of input stops it.
func ownServer(where string) int {
	cfg := Config{DataDir: where}
	if where == childEphemeral {
		cfg = Config{Ephemeral: true}
	}
	server, err := Start(context.Background(), cfg)
	if err != nil {
		return report(childReport{Error: err.Error()})
	}
	report(childReport{PID: server.proc.pid, URL: server.URL("postgres"), Runtime: server.layout.runtime})
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		if err := server.Freeze(); err != nil {
			return report(childReport{Error: err.Error()})
		}
		report(childReport{})
	}
	if err := server.Stop(context.Background()); err != nil {
		return report(childReport{Error: err.Error()})
	}
	return 0
}

func report(r childReport) int {
	if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
		return 2
	}
	return 1
}

// owner is a child process that owns a server.
type owner struct {
	childReport
	cmd    *exec.Cmd
	input  io.WriteCloser
	answer *json.Decoder
}

func startOwner(t *testing.T, where string) *owner {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+where)
	cmd.Stderr = os.Stderr
	input, err := cmd.StdinPipe()
	noError(t, err)
	output, err := cmd.StdoutPipe()
	noError(t, err)
	noError(t, cmd.Start())
	o := &owner{cmd: cmd, input: input, answer: json.NewDecoder(output)}
	t.Cleanup(o.kill9)
	o.read(t, &o.childReport)
	return o
}

func (o *owner) read(t *testing.T, into *childReport) {
	t.Helper()
	noError(t, o.answer.Decode(into))
	if into.Error != "" {
		t.Fatal(into.Error)
	}
}

func (o *owner) freeze(t *testing.T) {
	t.Helper()
	_, err := fmt.Fprintln(o.input, "freeze")
	noError(t, err)
	o.read(t, &childReport{})
}

// kill9 may be called twice; Kill and Wait then fail, as they should.
func (o *owner) kill9() {
	_ = o.cmd.Process.Kill()
	_ = o.cmd.Wait()
}

// folder is a temporary folder that every user may pass through, unlike the one
// of t.TempDir, so that root's server can live in it.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "privatepg-test-")
	noError(t, err)
	t.Cleanup(func() { noError(t, os.RemoveAll(dir)) })
	noError(t, os.Chmod(dir, 0o755))
	return dir
}

func start(t *testing.T, cfg Config) *Server {
	t.Helper()
	server, err := Start(t.Context(), cfg)
	noError(t, err)
	t.Cleanup(func() { noError(t, server.Stop(context.Background())) })
	return server
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually polls a condition that nothing announces.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(patience)
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for !condition() {
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := tryConnect(t, url)
	noError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func tryConnect(t *testing.T, url string) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return pgx.Connect(ctx, url)
}

func execute(t *testing.T, server *Server, sql string) {
	t.Helper()
	_, err := connect(t, server.URL("postgres")).Exec(t.Context(), sql)
	noError(t, err)
}

func text(t *testing.T, url, sql string) string {
	t.Helper()
	var value string
	noError(t, connect(t, url).QueryRow(t.Context(), sql).Scan(&value))
	return value
}
