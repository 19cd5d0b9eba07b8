package main

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/server"
	"github.com/leasehold/leasehold/store/postgres"
)

// Values of --migrate.
const (
	migrateAuto  = "auto"
	migrateCheck = "check"
)

const (
	// maxSocketPath is what every system takes: macOS has 104 bytes with the NUL.
	maxSocketPath = 103
	// maxDrain bounds --drain-timeout: a poll is parked for a minute at most.
	maxDrain = time.Hour
	// minConnectionAge: a client that connects anew more often does little else.
	minConnectionAge = time.Second
	maxConnectionAge = 24 * time.Hour
	// maxWatcherInterval: a lease that ran out should not stay unnoticed for longer.
	maxWatcherInterval = time.Hour
)

// Config is what serve and dev can be told. Flags and defaults: see flags.go.
type Config struct {
	Listen, HTTP      string
	DatabaseURL       string
	DatabaseURLFile   string
	DirectDatabaseURL string
	PoolSize          int
	WatcherInterval   time.Duration
	RetainFacts       time.Duration
	RetainPayloads    time.Duration
	DrainTimeout      time.Duration
	MaxConnectionAge  time.Duration
	Migrate           string
	AutoCreateQueues  bool
	ReadyFile         string
	LogLevel          string
	LogFormat         string
	Security          SecurityConfig

	// DataDir and Ephemeral are of dev only: where its private PostgreSQL keeps its data.
	DataDir   string
	Ephemeral bool
}

// Load reads what stands in files: the secret of --database-url-file.
func (c *Config) Load() error {
	if c.DatabaseURLFile == "" {
		return nil
	}
	if c.DatabaseURL != "" {
		return errors.New("--database-url and --database-url-file exclude each other")
	}
	text, err := os.ReadFile(c.DatabaseURLFile)
	if err != nil {
		return fmt.Errorf("--database-url-file: %w", err)
	}
	c.DatabaseURL = strings.TrimSpace(string(text))
	if c.DatabaseURL == "" {
		return fmt.Errorf("--database-url-file: %s is empty", c.DatabaseURLFile)
	}
	return nil
}

// ValidateServe reports all faults of a configuration of serve at once.
func (c *Config) ValidateServe() error {
	faults := c.faults()
	if c.DatabaseURL == "" {
		faults = append(faults, errors.New("--database-url (or --database-url-file) is required; for a database of its own: leasehold dev"))
	} else if err := c.database().Validate(); err != nil {
		faults = append(faults, err)
	}
	if c.Migrate != migrateAuto && c.Migrate != migrateCheck {
		faults = append(faults, fmt.Errorf("--migrate must be auto or check, got %q", c.Migrate))
	}
	return errors.Join(faults...)
}

// ValidateDev reports all faults of a configuration of dev at once.
func (c *Config) ValidateDev() error {
	faults := c.faults()
	if c.Ephemeral && c.DataDir != "" {
		faults = append(faults, errors.New("--data-dir and --ephemeral exclude each other"))
	}
	// The URL of the private server is not known yet.
	private := postgres.Config{URL: "postgres://localhost/", PoolSize: c.PoolSize}
	if err := private.Validate(); err != nil {
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

// faults are those that serve and dev can have alike.
func (c *Config) faults() []error {
	var faults []error
	check := func(flag string, err error) {
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", flag, err))
		}
	}
	_, err := parseAddress(c.Listen)
	check("--listen", err)
	_, err = parseAddress(c.HTTP)
	check("--http", err)
	if c.Listen == c.HTTP && !strings.HasSuffix(c.Listen, ":0") {
		faults = append(faults, fmt.Errorf("--listen and --http must differ, both are %q", c.Listen))
	}
	if c.PoolSize == 0 {
		faults = append(faults, errors.New("--pool-size must not be 0"))
	}
	check("--watcher-interval", between(c.WatcherInterval, server.MinWatcherInterval, maxWatcherInterval))
	check("--drain-timeout", between(c.DrainTimeout, 0, maxDrain))
	if c.MaxConnectionAge != 0 {
		check("--max-connection-age", between(c.MaxConnectionAge, minConnectionAge, maxConnectionAge))
	}
	check("--retain-facts", retention(c.RetainFacts))
	check("--retain-payloads", retention(c.RetainPayloads))
	check("--ready-file", (readyFile{c.ReadyFile}).possible())
	if _, err := parseLevel(c.LogLevel); err != nil {
		faults = append(faults, err)
	}
	if c.LogFormat != logText && c.LogFormat != logJSON {
		faults = append(faults, fmt.Errorf("--log-format must be %s or %s, got %q", logText, logJSON, c.LogFormat))
	}
	return append(faults, c.Security.faults(c.Listen)...)
}

func between(d, least, most time.Duration) error {
	if d < least || d > most {
		return fmt.Errorf("must be %v..%v, got %v", least, most, d)
	}
	return nil
}

func retention(d time.Duration) error {
	if d != 0 && d < server.MinRetention {
		return fmt.Errorf("must be at least %v, or 0 for ever, got %v", server.MinRetention, d)
	}
	return nil
}

func (c *Config) database() postgres.Config {
	return postgres.Config{URL: c.DatabaseURL, DirectURL: c.DirectDatabaseURL, PoolSize: c.PoolSize}
}

// directURL reaches the server itself.
func (c *Config) directURL() string { return cmp.Or(c.DirectDatabaseURL, c.DatabaseURL) }

// LogValue is the configuration without its secrets.
func (c *Config) LogValue() slog.Value {
	attrs := []slog.Attr{
		slog.String("listen", c.Listen), slog.String("http", c.HTTP),
		slog.String("database", redact(c.DatabaseURL)), slog.Int("pool_size", c.PoolSize),
		slog.Duration("watcher_interval", c.WatcherInterval), slog.Duration("drain_timeout", c.DrainTimeout),
		slog.Duration("max_connection_age", c.MaxConnectionAge),
		slog.String("migrate", c.Migrate), slog.Bool("auto_create_queues", c.AutoCreateQueues),
		slog.Duration("retain_facts", c.RetainFacts), slog.Duration("retain_payloads", c.RetainPayloads),
		slog.String("log_level", c.LogLevel), slog.String("log_format", c.LogFormat),
		slog.Bool("reflection", c.Security.Reflection), slog.Bool("insecure_anyone_may_call", c.Security.AnyoneMayCall),
		slog.Bool("insecure_plain_text", c.Security.PlainText),
	}
	optional := []slog.Attr{
		slog.String("direct_database", redact(c.DirectDatabaseURL)), slog.String("database_url_file", c.DatabaseURLFile),
		slog.String("data_dir", c.DataDir), slog.String("ready_file", c.ReadyFile),
		slog.String("tls_cert", c.Security.TLSCert), slog.String("tls_key", c.Security.TLSKey),
		slog.String("tls_client_ca", c.Security.TLSClientCA), slog.String("access_file", c.Security.AccessFile),
	}
	attrs = append(attrs, slices.DeleteFunc(optional, func(a slog.Attr) bool { return a.Value.String() == "" })...)
	return slog.GroupValue(attrs...)
}

// redact says where a database is and as whom it is used, and nothing else: a connection
// string can carry passwords in several places.
func redact(databaseURL string) string {
	if databaseURL == "" {
		return ""
	}
	cc, err := pgx.ParseConfig(databaseURL)
	if err != nil {
		return "(cannot be parsed)"
	}
	hosts := []string{net.JoinHostPort(cc.Host, strconv.Itoa(int(cc.Port)))}
	for _, f := range cc.Fallbacks {
		if host := net.JoinHostPort(f.Host, strconv.Itoa(int(f.Port))); !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
	}
	return fmt.Sprintf("%s at %s as %s", cc.Database, strings.Join(hosts, ","), cc.User)
}

// defaultDataDir is where dev keeps its data unless told otherwise. PostgreSQL refuses root
// and runs under another account then, to which the home of root is closed.
func defaultDataDir(env lookupEnv, uid int) (string, error) {
	if dir, _ := env("XDG_DATA_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "leasehold", "dev"), nil
	}
	if uid == 0 {
		return "/var/lib/leasehold/dev", nil
	}
	home, _ := env("HOME")
	if !filepath.IsAbs(home) {
		return "", errors.New("neither XDG_DATA_HOME nor HOME is set: give --data-dir or --ephemeral")
	}
	return filepath.Join(home, ".local", "share", "leasehold", "dev"), nil
}
