package pgtest

import (
	"context"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/internal/privatepg"
)

// databasePatience bounds the making and dropping of one database, on a busy
// machine with many tests side by side.
const databasePatience = 2 * time.Minute

// Migrate brings an empty database up to date.
type Migrate func(ctx context.Context, url string) error

// template is a database that was migrated once; it takes no connections, since
// one connection to it makes every cloning fail.
type template struct {
	once sync.Once
	name string
	err  error
}

var (
	// templates are by the code of their migration.
	templates sync.Map
	// databases numbers the databases of this process.
	databases atomic.Int64
)

// Database returns the URL of a database for this test alone, dropped after it.
// It is a copy of one that migrate made, once per test process and migrate; a
// nil migrate leaves it empty. Because migrate is told apart by its code, it
// must be a named function: two closures of one literal would share a database.
func Database(t testing.TB, migrate Migrate) string {
	t.Helper()
	server := Shared(t)
	source, err := templateOf(server, migrate)
	if err != nil {
		t.Fatalf("migrating the template database: %v", err)
	}
	name := fmt.Sprintf("test_%d", databases.Add(1))
	if err := admin(server, createFrom(server, name, source)); err != nil {
		t.Fatalf("making a database for the test: %v", err)
	}
	t.Cleanup(func() {
		if err := admin(server, fmt.Sprintf("DROP DATABASE IF EXISTS %s WITH (FORCE)", name)); err != nil {
			t.Errorf("dropping the test's database: %v", err)
		}
	})
	return server.URL(name)
}

func templateOf(server *privatepg.Server, migrate Migrate) (string, error) {
	if migrate == nil {
		return "template0", nil
	}
	code := reflect.ValueOf(migrate).Pointer()
	if name := runtime.FuncForPC(code).Name(); strings.Contains(name, ".func") || strings.HasSuffix(name, "-fm") {
		return "", fmt.Errorf("%s is no named function", name)
	}
	entry, _ := templates.LoadOrStore(code, &template{})
	made := entry.(*template)
	made.once.Do(func() { made.name, made.err = makeTemplate(server, migrate) })
	return made.name, made.err
}

func makeTemplate(server *privatepg.Server, migrate Migrate) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), databasePatience)
	defer cancel()
	name := fmt.Sprintf("template_%d", databases.Add(1))
	if err := admin(server, createFrom(server, name, "template0")); err != nil {
		return "", err
	}
	if err := migrate(ctx, server.URL(name)); err != nil {
		return "", err
	}
	return name, admin(server, "ALTER DATABASE "+name+" ALLOW_CONNECTIONS false")
}

// createFrom copies files: the default since PostgreSQL 15 writes every page to
// the WAL too, which without fsync only makes more to write.
func createFrom(server *privatepg.Server, name, source string) string {
	statement := fmt.Sprintf("CREATE DATABASE %s TEMPLATE %s", name, source)
	if server.Major() >= 15 {
		statement += " STRATEGY file_copy"
	}
	return statement
}

// admin runs one statement beside all databases of tests. A connection for each
// keeps no goroutine and no socket alive between tests.
func admin(server *privatepg.Server, statement string) error {
	ctx, cancel := context.WithTimeout(context.Background(), databasePatience)
	defer cancel()
	conn, err := pgx.Connect(ctx, server.SocketURL("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, statement)
	return err
}
