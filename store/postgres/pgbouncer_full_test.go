//go:build full

package postgres_test

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/postgres"
	"github.com/leasehold/leasehold/store/storetest"
)

// pooler is a PgBouncer in transaction mode in front of the shared server, one for all tests.
type pooler struct {
	once sync.Once
	port int
	err  error
}

var sharedPooler pooler

// through answers the URL that reaches a database by way of the pooler.
func (p *pooler) through(t testing.TB, direct string) string {
	t.Helper()
	u, err := url.Parse(direct)
	if err != nil {
		t.Fatal(err)
	}
	p.once.Do(func() { p.port, p.err = startPooler(u) })
	if p.err != nil {
		t.Fatalf("PgBouncer (Debian package pgbouncer) is needed: %v", p.err)
	}
	u.Host = net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port))
	u.RawQuery = "sslmode=disable"
	return u.String()
}

func startPooler(server *url.URL) (int, error) {
	dir, err := os.MkdirTemp("", "leasehold-pgbouncer-")
	if err != nil {
		return 0, err
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	port := free.Addr().(*net.TCPAddr).Port
	_ = free.Close() // only its number was wanted
	password, _ := server.User.Password()
	config := fmt.Sprintf(`[databases]
* = host=%s port=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = plain
auth_file = %s
pool_mode = transaction
default_pool_size = 3
max_client_conn = 2000
server_reset_query =
`, server.Hostname(), server.Port(), port, filepath.Join(dir, "users"))
	for name, content := range map[string]string{
		"pgbouncer.ini": config, "users": fmt.Sprintf("%q %q\n", server.User.Username(), password),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			return 0, err
		}
	}
	command := exec.Command("pgbouncer", "-q", filepath.Join(dir, "pgbouncer.ini"))
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if os.Getuid() == 0 { // it refuses to run as root
		if err := os.Chmod(dir, 0o755); err != nil {
			return 0, err
		}
		if command.SysProcAttr.Credential, err = credentialOf("postgres"); err != nil {
			return 0, err
		}
	}
	// A file and no buffer: it outlives the tests, and a copying goroutine would as well.
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return 0, err
	}
	defer log.Close()
	command.Stdout, command.Stderr = log, log
	if err := command.Start(); err != nil {
		return 0, err
	}
	for end := time.Now().Add(20 * time.Second); ; {
		conn, err := net.DialTimeout("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), time.Second)
		if err == nil {
			return port, conn.Close()
		}
		if time.Now().After(end) {
			return 0, fmt.Errorf("it does not listen: %w, see %s", err, log.Name())
		}
	}
}

func credentialOf(name string) (*syscall.Credential, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return nil, err
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

// pooledHarness is the harness with Stores that reach the database through the pooler.
type pooledHarness struct {
	*harness
	pooled string
}

func (h *pooledHarness) Replica(t testing.TB) store.Store { return openPooled(t, h.pooled, h.URL) }

func openPooled(t testing.TB, pooled, direct string) *postgres.Store {
	t.Helper()
	s, err := postgres.Open(t.Context(), postgres.Config{URL: pooled, DirectURL: direct, PoolSize: 12})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// TestR40BehindPgBouncer runs the contract and the random sequences behind a pooler in
// transaction mode, with fewer server connections than the Store has.
func TestR40BehindPgBouncer(t *testing.T) {
	newStore := func(t *testing.T) storetest.Harness {
		direct := pgtest.Database(t, migrate)
		pooled := sharedPooler.through(t, direct)
		h := &pooledHarness{harness: newHarnessOver(t, direct, openPooled(t, pooled, direct)), pooled: pooled}
		return h
	}
	t.Run("contract", func(t *testing.T) { storetest.Run(t, newStore) })
	t.Run("random", func(t *testing.T) { storetest.RunRandom(t, newStore) })
}

// TestR40PoolerWithoutDirectURLIsRefused at start, with the reason.
func TestR40PoolerWithoutDirectURLIsRefused(t *testing.T) {
	pooled := sharedPooler.through(t, pgtest.Database(t, migrate))
	for name, cfg := range map[string]postgres.Config{
		"none": {URL: pooled}, "pooled as well": {URL: pooled, DirectURL: pooled},
	} {
		s, err := postgres.Open(t.Context(), cfg)
		if err == nil {
			s.Close()
		}
		unsupported, ok := err.(*store.UnsupportedError) //nolint:errorlint // the contract of Open
		if !ok || !strings.Contains(unsupported.Reason, "--direct-database-url") {
			t.Errorf("%s: Open answers %v", name, err)
		}
	}
}
