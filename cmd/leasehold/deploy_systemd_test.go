package main

import (
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold/leasehold/internal/doctest"
	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
	"github.com/leasehold/leasehold/internal/testca"
)

// unit is a systemd unit: what stands behind each name of its section Service.
type unit map[string][]string

func readUnit(t *testing.T) unit {
	t.Helper()
	u, section := unit{}, ""
	for line := range strings.Lines(readFile(t, filepath.Join(doctest.Root(t), "deploy", "systemd"), "leasehold.service")) {
		line = strings.TrimSpace(line)
		switch name, value, pair := strings.Cut(line, "="); {
		case line == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "["):
			section = line
		case !pair:
			t.Fatalf("cannot read %q", line)
		case section == "[Service]":
			u[name] = append(u[name], value)
		}
	}
	return u
}

func (u unit) one(t *testing.T, name string) string {
	t.Helper()
	if len(u[name]) != 1 {
		t.Fatalf("%s is %q", name, u[name])
	}
	return u[name][0]
}

// env is the environment, whose %d is the folder of the credentials.
func (u unit) env(t *testing.T, credentials string) map[string]string {
	t.Helper()
	env := map[string]string{}
	for _, pair := range u["Environment"] {
		name, value, _ := strings.Cut(pair, "=")
		if file, is := strings.CutPrefix(value, "%d/"); is && !slices.Contains(u["LoadCredential"], file+":/etc/leasehold/"+file) {
			t.Errorf("%s: no credential %s is loaded", name, file)
		}
		env[name] = strings.Replace(value, "%d", credentials, 1)
	}
	return env
}

func (u unit) command(t *testing.T) []string {
	t.Helper()
	args, is := strings.CutPrefix(u.one(t, "ExecStart"), "/usr/local/bin/leasehold ")
	if !is {
		t.Fatalf("it starts %q", u.one(t, "ExecStart"))
	}
	return strings.Fields(args)
}

// TestSystemdUnit: what it says is what the binary takes, it is not killed in its drain, and it
// runs as nobody with nothing.
func TestSystemdUnit(t *testing.T) {
	t.Parallel()
	u := readUnit(t)
	cfg := mustConfigure(t, u.command(t), withURLFile(t, u.env(t, "/run/credentials")))
	stop, err := time.ParseDuration(u.one(t, "TimeoutStopSec") + "s")
	if err != nil || stop <= cfg.DrainTimeout {
		t.Errorf("the service is killed after %s, %v, and drains for %s", stop, err, cfg.DrainTimeout)
	}
	for name, want := range map[string]string{
		"DynamicUser": "yes", "NoNewPrivileges": "yes", "ProtectSystem": "strict", "CapabilityBoundingSet": "", "Restart": "always", "KillSignal": "SIGTERM",
	} {
		if got := u.one(t, name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}

// TestSystemdCommandLineRuns with the variables and files of the unit.
func TestSystemdCommandLineRuns(t *testing.T) {
	t.Parallel()
	dir, u, ca := t.TempDir(), readUnit(t), testca.New(t, "authority")
	cert, key := ca.Cert(t, t.TempDir(), testca.Spec{CN: "leasehold"})
	for name, text := range map[string]string{
		"database-url": pgtest.Database(t, nil), "tls.crt": readFile(t, "", cert), "tls.key": readFile(t, "", key),
		"access.yaml": "certificates:\n  - {name: worker, subject: \"cn:worker\", grants: {worker: [\"*\"]}}\n",
	} {
		writeFile(t, filepath.Join(dir, name), text)
	}
	p := beginServiceIn(t, asList(u.env(t, dir), "LEASEHOLD_LISTEN", "LEASEHOLD_HTTP"), u.command(t)...)
	p.addresses(t)
	p.signal(t, syscall.SIGTERM)
	p.mustExit(t, 0)
}
