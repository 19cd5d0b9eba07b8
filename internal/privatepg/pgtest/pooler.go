//go:build full

package pgtest

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

// poolerPatience bounds the start of PgBouncer.
const poolerPatience = 20 * time.Second

// pooler is a PgBouncer in transaction mode in front of the shared server, one for all tests
// of the process.
var pooler struct {
	once sync.Once
	port int
	err  error
}

// Pooled answers the URL that reaches a database of the shared server by way of PgBouncer
// (Debian package pgbouncer), in transaction mode and with three server connections to each
// database: fewer than a pool has, so that sessions do change under their users.
func Pooled(t testing.TB, direct string) string {
	t.Helper()
	u, err := url.Parse(direct)
	if err != nil {
		t.Fatal(err)
	}
	pooler.once.Do(func() { pooler.port, pooler.err = startPooler(u) })
	if pooler.err != nil {
		t.Fatalf("PgBouncer (Debian package pgbouncer) is needed: %v", pooler.err)
	}
	u.Host = net.JoinHostPort("127.0.0.1", strconv.Itoa(pooler.port))
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
	if err := configurePooler(dir, server, port); err != nil {
		return 0, err
	}
	command := exec.Command("pgbouncer", "-q", filepath.Join(dir, "pgbouncer.ini"))
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if os.Getuid() == 0 { // it refuses to run as root
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
	for end := time.Now().Add(poolerPatience); ; {
		conn, err := net.DialTimeout("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), time.Second)
		if err == nil {
			return port, conn.Close()
		}
		if time.Now().After(end) {
			return 0, fmt.Errorf("it does not listen: %w, see %s", err, log.Name())
		}
	}
}

func configurePooler(dir string, server *url.URL, port int) error {
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
			return err
		}
	}
	return os.Chmod(dir, 0o755) // it runs under another account
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
