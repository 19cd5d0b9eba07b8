package main

import (
	"bytes"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// loaded reads a command line of serve or dev as the command would, without running it.
func loaded(t *testing.T, command string, env map[string]string, args ...string) (*Config, error) {
	t.Helper()
	c := &Config{Migrate: migrateAuto}
	f := pflag.NewFlagSet(command, pflag.ContinueOnError)
	serviceFlags(f, c, command == "dev")
	validate := c.ValidateDev
	if command == "serve" {
		databaseFlags(f, c)
		validate = c.ValidateServe
	}
	if err := f.Parse(args); err != nil {
		t.Fatal(err)
	}
	return c, configured(f, c, func(name string) (string, bool) {
		value, set := env[name]
		return value, set
	}, validate)
}

func TestBadConfigurationIsRefused(t *testing.T) {
	t.Parallel()
	const database = "--database-url=postgres://localhost/x"
	cases := map[string]struct {
		args []string
		env  map[string]string
		want string
	}{
		"no database":           {nil, nil, "--database-url"},
		"database not a URL":    {[]string{"--database-url=postgres://%zz"}, nil, "cannot be parsed"},
		"direct not a URL":      {[]string{database, "--direct-database-url=postgres://%zz"}, nil, "direct database URL"},
		"file missing":          {[]string{"--database-url-file=/nowhere/at/all"}, nil, "--database-url-file"},
		"url and file":          {[]string{database, "--database-url-file=/nowhere"}, nil, "exclude each other"},
		"listen without port":   {[]string{database, "--listen=localhost"}, nil, "--listen"},
		"listen port too high":  {[]string{database, "--listen=localhost:70000"}, nil, "0..65535"},
		"listen port a word":    {[]string{database, "--listen=localhost:http"}, nil, "0..65535"},
		"socket without path":   {[]string{database, "--listen=unix:"}, nil, "needs a path"},
		"socket path too long":  {[]string{database, "--http=unix:/" + strings.Repeat("x", 200)}, nil, "--http"},
		"the same address":      {[]string{database, "--listen=:7070", "--http=:7070"}, nil, "must differ"},
		"pool of zero":          {[]string{database, "--pool-size=0"}, nil, "--pool-size"},
		"pool negative":         {[]string{database, "--pool-size=-1"}, nil, "4..1000"},
		"pool too large":        {[]string{database, "--pool-size=1001"}, nil, "4..1000"},
		"watcher too quick":     {[]string{database, "--watcher-interval=99ms"}, nil, "100ms..1h"},
		"watcher zero":          {[]string{database, "--watcher-interval=0"}, nil, "100ms..1h"},
		"watcher too slow":      {[]string{database, "--watcher-interval=61m"}, nil, "100ms..1h"},
		"drain negative":        {[]string{database, "--drain-timeout=-1s"}, nil, "--drain-timeout"},
		"drain too long":        {[]string{database, "--drain-timeout=2h"}, nil, "--drain-timeout"},
		"connections too short": {[]string{database, "--max-connection-age=10ms"}, nil, "1s..24h"},
		"facts for an hour":     {[]string{database, "--retain-facts=1h"}, nil, "--retain-facts"},
		"facts negative":        {[]string{database, "--retain-facts=-24h"}, nil, "--retain-facts"},
		"payloads for an hour":  {[]string{database, "--retain-payloads=23h"}, nil, "--retain-payloads"},
		"log level":             {[]string{database, "--log-level=loud"}, nil, "--log-level"},
		"log format":            {[]string{database, "--log-format=xml"}, nil, "--log-format"},
		"ready file nowhere":    {[]string{database, "--ready-file=/nowhere/at/all"}, nil, "--ready-file"},
		"open to everybody":     {[]string{database, "--listen=:7070"}, nil, "--insecure-anyone-may-call"},
		"open by address":       {[]string{database, "--listen=192.0.2.1:7070"}, nil, "--insecure-anyone-may-call"},
		"open by name":          {[]string{database, "--listen=example.org:7070"}, nil, "--insecure-anyone-may-call"},
		"TLS and nobody known":  {[]string{database, "--listen=:7070", "--tls-cert=c", "--tls-key=k"}, nil, "--insecure-anyone-may-call"},
		"tokens in plain text":  {[]string{database, "--listen=:7070", "--access-file=a"}, nil, "--insecure-plain-text"},
		"anyone, not plain":     {[]string{database, "--listen=:7070", "--access-file=a", "--insecure-anyone-may-call"}, nil, "--insecure-plain-text"},
		"certificate, no key":   {[]string{database, "--tls-cert=c"}, nil, "belong together"},
		"client CA, no TLS":     {[]string{database, "--tls-client-ca=c", "--access-file=a"}, nil, "needs --tls-cert"},
		"client CA, no names":   {[]string{database, "--tls-client-ca=c", "--tls-cert=c", "--tls-key=k"}, nil, "needs --access-file"},
		"environment no number": {[]string{database}, map[string]string{"LEASEHOLD_POOL_SIZE": "many"}, "LEASEHOLD_POOL_SIZE"},
		"environment no time":   {[]string{database}, map[string]string{"LEASEHOLD_WATCHER_INTERVAL": "30"}, "LEASEHOLD_WATCHER_INTERVAL"},
		"environment too quick": {[]string{database}, map[string]string{"LEASEHOLD_WATCHER_INTERVAL": "1ms"}, "100ms..1h"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := loaded(t, "serve", c.env, c.args...)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want a fault with %q", err, c.want)
			}
		})
	}
}

func TestGoodConfigurationsAreTaken(t *testing.T) {
	t.Parallel()
	const database = "--database-url=postgres://localhost/x"
	for _, args := range [][]string{
		{database},
		{database, "--listen=:0", "--http=:0", "--insecure-anyone-may-call"},
		{database, "--listen=localhost:0", "--http=:0"},
		{database, "--listen=:0", "--access-file=a", "--insecure-plain-text"},
		{database, "--listen=:0", "--access-file=a", "--tls-cert=c", "--tls-key=k", "--tls-client-ca=d"},
		{database, "--access-file=a"},
		{database, "--listen=unix:/tmp/a.sock", "--http=unix:///tmp/b.sock"},
		{database, "--listen=[::1]:7070"},
		{database, "--watcher-interval=100ms", "--drain-timeout=0", "--pool-size=4"},
		{database, "--retain-facts=24h", "--retain-payloads=8760h", "--max-connection-age=0"},
		{"--database-url=host=a,b port=1,2 dbname=c target_session_attrs=read-write"},
	} {
		if _, err := loaded(t, "serve", nil, args...); err != nil {
			t.Errorf("%v: %v", args, err)
		}
	}
}

// TestAllFaultsAtOnce: whoever mends one fault per restart needs an hour for ten.
func TestAllFaultsAtOnce(t *testing.T) {
	t.Parallel()
	code, _, stderr := runIn(t, map[string]string{"LEASEHOLD_POOL_SIZE": "many"}, "serve",
		"--listen", "nowhere", "--http", "unix:", "--watcher-interval", "1ms", "--drain-timeout", "-1s",
		"--retain-facts", "1h", "--retain-payloads", "1h", "--migrate", "maybe", "--log-level", "loud", "--log-format", "xml")
	if code != exitUsage {
		t.Errorf("exit code %d, want %d", code, exitUsage)
	}
	for _, want := range []string{
		"LEASEHOLD_POOL_SIZE", "--listen", "--http", "--watcher-interval", "--drain-timeout", "--retain-facts",
		"--retain-payloads", "--migrate", "--log-level", "--log-format", "--database-url",
	} {
		if !strings.Contains(stderr, want) {
			t.Errorf("%s is not among the faults:\n%s", want, stderr)
		}
	}
}

func TestFlagWinsOverEnvironmentWinsOverDefault(t *testing.T) {
	t.Parallel()
	env := map[string]string{
		"LEASEHOLD_DATABASE_URL": "postgres://localhost/x", "LEASEHOLD_POOL_SIZE": "11", "LEASEHOLD_LISTEN": "localhost:1",
		"LEASEHOLD_AUTO_CREATE_QUEUES": "true", "LEASEHOLD_LOG_LEVEL": "",
	}
	c, err := loaded(t, "serve", env, "--listen=localhost:2")
	if err != nil {
		t.Fatal(err)
	}
	if c.Listen != "localhost:2" || c.PoolSize != 11 || !c.AutoCreateQueues || c.LogLevel != "info" {
		t.Errorf("got listen %q, pool size %d, auto-create %v, level %q", c.Listen, c.PoolSize, c.AutoCreateQueues, c.LogLevel)
	}
	dev, err := loaded(t, "dev", map[string]string{"LEASEHOLD_DATABASE_URL": "not for dev"})
	if err != nil || !dev.AutoCreateQueues || dev.DatabaseURL != "" {
		t.Errorf("dev: %v, auto-create %v, database %q", err, dev.AutoCreateQueues, dev.DatabaseURL)
	}
	serve, err := loaded(t, "serve", map[string]string{"LEASEHOLD_DATABASE_URL": "postgres://localhost/x"})
	if err != nil || serve.AutoCreateQueues {
		t.Errorf("serve: %v, auto-create %v", err, serve.AutoCreateQueues)
	}
}

// TestEveryFlagHasItsVariable: the name can be guessed from the flag's.
func TestEveryFlagHasItsVariable(t *testing.T) {
	t.Parallel()
	want := map[string]string{
		"listen": "LEASEHOLD_LISTEN", "http": "LEASEHOLD_HTTP", "database-url": "LEASEHOLD_DATABASE_URL",
		"database-url-file": "LEASEHOLD_DATABASE_URL_FILE", "direct-database-url": "LEASEHOLD_DIRECT_DATABASE_URL",
		"pool-size": "LEASEHOLD_POOL_SIZE", "watcher-interval": "LEASEHOLD_WATCHER_INTERVAL",
		"drain-timeout": "LEASEHOLD_DRAIN_TIMEOUT", "max-connection-age": "LEASEHOLD_MAX_CONNECTION_AGE", "migrate": "LEASEHOLD_MIGRATE",
		"auto-create-queues": "LEASEHOLD_AUTO_CREATE_QUEUES", "data-dir": "LEASEHOLD_DATA_DIR",
		"ephemeral": "LEASEHOLD_EPHEMERAL", "ready-file": "LEASEHOLD_READY_FILE", "log-level": "LEASEHOLD_LOG_LEVEL",
		"log-format": "LEASEHOLD_LOG_FORMAT", "retain-facts": "LEASEHOLD_RETAIN_FACTS",
		"retain-payloads": "LEASEHOLD_RETAIN_PAYLOADS", "tls-cert": "LEASEHOLD_TLS_CERT", "tls-key": "LEASEHOLD_TLS_KEY",
		"tls-client-ca": "LEASEHOLD_TLS_CLIENT_CA", "access-file": "LEASEHOLD_ACCESS_FILE", "reflection": "LEASEHOLD_REFLECTION",
		"insecure-anyone-may-call": "LEASEHOLD_INSECURE_ANYONE_MAY_CALL", "insecure-plain-text": "LEASEHOLD_INSECURE_PLAIN_TEXT",
	}
	got := map[string]string{}
	for _, name := range []string{"serve", "dev"} {
		cmd, _, err := newRoot(streams{}, os.LookupEnv).Find([]string{name})
		if err != nil {
			t.Fatal(err)
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) { got[f.Name] = envName(f.Name) })
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v\nwant %v", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
	}
}

func TestDatabaseURLFromAFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "url")
	if err := os.WriteFile(file, []byte("postgres://localhost/from-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := loaded(t, "serve", map[string]string{"LEASEHOLD_DATABASE_URL_FILE": file})
	if err != nil || c.DatabaseURL != "postgres://localhost/from-file" {
		t.Errorf("got %q, %v", c.DatabaseURL, err)
	}
	if err := os.WriteFile(file, []byte(" \n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := loaded(t, "serve", nil, "--database-url-file="+file); err == nil || !strings.Contains(err.Error(), "empty") {
		t.Errorf("an empty file: %v", err)
	}
}

// TestNoSecretInTheLog: a connection string carries a password in several places.
func TestNoSecretInTheLog(t *testing.T) {
	t.Parallel()
	const secret = "hunter2secret"
	for _, url := range []string{
		"postgres://u:" + secret + "@h:1/d",
		"postgres://u@h:1/d?password=" + secret,
		"host=h port=1 dbname=d user=u password=" + secret,
		"host=h port=1 dbname=d user=u password='" + secret + "' sslmode=disable",
		"postgres://u:" + secret + "@h:1,g:2/d",
		"postgres://u:" + secret + "@h:notaport/d",
		"postgres://u:" + secret + "@%zz",
	} {
		c := &Config{DatabaseURL: url, DirectDatabaseURL: url, LogLevel: "info", LogFormat: logText}
		var log bytes.Buffer
		newLogger(&log, c).Info("starting", "config", c)
		slog.New(slog.NewJSONHandler(&log, nil)).Info("starting", "config", c)
		if err := c.ValidateServe(); err != nil {
			log.WriteString(err.Error())
		}
		if strings.Contains(log.String(), secret) {
			t.Errorf("%s is logged:\n%s", url, &log)
		}
	}
	if got := redact("postgres://u:p@h:1,g:2/d"); got != "d at h:1,g:2 as u" {
		t.Errorf("redact says %q", got)
	}
}

func TestDefaultDataDir(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		env  map[string]string
		uid  int
		want string
	}{
		{map[string]string{"XDG_DATA_HOME": "/x", "HOME": "/h"}, 1000, "/x/leasehold/dev"},
		{map[string]string{"XDG_DATA_HOME": "relative", "HOME": "/h"}, 1000, "/h/.local/share/leasehold/dev"},
		{map[string]string{"HOME": "/h"}, 1000, "/h/.local/share/leasehold/dev"},
		{map[string]string{"HOME": "/root"}, 0, "/var/lib/leasehold/dev"},
		{map[string]string{"XDG_DATA_HOME": "/x"}, 0, "/x/leasehold/dev"},
		{nil, 1000, ""},
	} {
		got, err := defaultDataDir(func(name string) (string, bool) { v, ok := c.env[name]; return v, ok }, c.uid)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%v, user %d: got %q, %v, want %q", c.env, c.uid, got, err, c.want)
		}
	}
	if _, err := loaded(t, "dev", nil); err != nil {
		t.Error(err)
	}
}
