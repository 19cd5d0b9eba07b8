package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
)

// childEnv makes the test binary one that only uses the package, in the way
// that its value names.
const childEnv = "PGTEST_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) == "panics" {
		// Without Run the server has only the kernel to end it.
		os.Exit(m.Run())
	}
	os.Exit(Run(m))
}

// TestInAChild is what the child processes run.
func TestInAChild(t *testing.T) {
	server := Shared(t)
	fmt.Printf("port %d\n", server.Port())
	switch os.Getenv(childEnv) {
	case "panics":
		panic("the test process ends in a bad way")
	case "leaks":
		started := make(chan struct{})
		go func() {
			close(started)
			select {}
		}()
		<-started
	}
}

// child runs TestInAChild in another process.
func child(t *testing.T, how string, env ...string) (output string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestInAChild$")
	cmd.Env = append(append(os.Environ(), childEnv+"="+how), env...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

func TestServerEndsWithTheTestProcess(t *testing.T) {
	t.Parallel()
	for how, wantCode := range map[string]int{"passes": 0, "leaks": 1, "panics": 2} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			output, code := child(t, how)
			if code != wantCode {
				t.Errorf("exit code %d, want %d\n%s", code, wantCode, output)
			}
			_, after, _ := strings.Cut(output, "port ")
			line, _, _ := strings.Cut(after, "\n")
			port, err := strconv.Atoi(line)
			if err != nil {
				t.Fatalf("no port in: %s", output)
			}
			awaitClosed(t, port)
			if leaked := strings.Contains(output, "left goroutines behind"); leaked != (how == "leaks") {
				t.Errorf("goroutines reported: %v\n%s", leaked, output)
			}
		})
	}
}

// awaitClosed polls: where the kernel's signal ends the server, nobody says when.
func awaitClosed(t *testing.T, port int) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return
		}
		conn.Close()
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatal("the server outlives the test process")
		}
	}
}

func TestWithoutPostgreSQLTestsFail(t *testing.T) {
	t.Parallel()
	output, code := child(t, "passes", "LEASEHOLD_PG_BIN=/nonexistent")
	if code != 1 || !strings.Contains(output, "this test needs PostgreSQL: no PostgreSQL >= 14") {
		t.Errorf("exit code %d\n%s", code, output)
	}
}

// migrations counts the runs of createNotes.
var migrations atomic.Int64

func createNotes(ctx context.Context, url string) error {
	migrations.Add(1)
	return run(ctx, url, "CREATE TABLE notes (text text PRIMARY KEY)")
}

func createNothing(context.Context, string) error { return errors.New("no such migration") }

func run(ctx context.Context, url, sql string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, sql)
	return err
}

func TestDatabasesAreClonedAndApart(t *testing.T) {
	t.Parallel()
	for i := range 8 {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			url := Database(t, createNotes)
			// The same key in each: it would clash if two tests shared one.
			if err := run(t.Context(), url, "INSERT INTO notes VALUES ('mine')"); err != nil {
				t.Error(err)
			}
			if got := migrations.Load(); got != 1 {
				t.Errorf("migrated %d times", got)
			}
		})
	}
}

func TestEmptyDatabase(t *testing.T) {
	t.Parallel()
	url := Database(t, nil)
	if err := run(t.Context(), url, "CREATE TABLE notes ()"); err != nil {
		t.Error(err)
	}
}

// The database goes though somebody is still connected, as after a test that
// failed half way.
func TestDatabaseIsDroppedUnderItsUsers(t *testing.T) {
	t.Parallel()
	var url string
	var left *pgx.Conn
	t.Run("user", func(t *testing.T) {
		url = Database(t, nil)
		var err error
		if left, err = pgx.Connect(t.Context(), url); err != nil {
			t.Fatal(err)
		}
	})
	if err := left.Ping(t.Context()); err == nil {
		t.Error("the forgotten connection still works")
	}
	if err := run(t.Context(), url, "SELECT 1"); err == nil {
		t.Error("the database is still there")
	}
}

func TestClosuresAreNoMigrations(t *testing.T) {
	t.Parallel()
	server := Shared(t)
	if _, err := templateOf(server, func(context.Context, string) error { return nil }); err == nil {
		t.Error("a function literal was accepted: two of them can share one code")
	}
	if _, err := templateOf(server, createNothing); err == nil || err.Error() != "no such migration" {
		t.Errorf("a failing migration: %v", err)
	}
}

func TestServerIsTheTestsOwn(t *testing.T) {
	t.Parallel()
	own := Server(t)
	if own.Port() == Shared(t).Port() {
		t.Fatal("it is the shared one")
	}
	if err := own.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := run(t.Context(), Shared(t).URL("postgres"), "SELECT 1"); err != nil {
		t.Errorf("the shared server went with it: %v", err)
	}
}

// Not parallel: other tests' goroutines would count.
func TestSharedServerIsNoLeakOfATest(t *testing.T) {
	Shared(t)
	goleak.VerifyNone(t, IgnoreShared())
}
