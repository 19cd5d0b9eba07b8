package privatepg

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// superuser is the role that URL logs in as.
const superuser = "postgres"

// prepareCluster makes the data directory unless it is there, and returns the
// binaries that fit it and the password.
func prepareCluster(ctx context.Context, l *layout, who account, cfg Config) (Binaries, string, error) {
	version, err := os.ReadFile(filepath.Join(l.pgdata(), "PG_VERSION"))
	if errors.Is(err, fs.ErrNotExist) {
		return createCluster(ctx, l, who, cfg)
	}
	if err != nil {
		return Binaries{}, "", err
	}
	major, err := strconv.Atoi(strings.TrimSpace(string(version)))
	if err != nil {
		return Binaries{}, "", fmt.Errorf("version of the data in %s: %w", l.pgdata(), err)
	}
	bin, err := findFor(l.base, major)
	if err != nil {
		return Binaries{}, "", err
	}
	password, err := os.ReadFile(l.password())
	if errors.Is(err, fs.ErrNotExist) {
		return Binaries{}, "", &PasswordMissingError{DataDir: l.base, File: l.password()}
	}
	return bin, strings.TrimSpace(string(password)), err
}

// createCluster runs initdb beside the final place and renames at the end: an
// initdb that was killed half way must not leave what looks like data.
func createCluster(ctx context.Context, l *layout, who account, cfg Config) (Binaries, string, error) {
	bin, err := Find()
	if err != nil {
		return Binaries{}, "", err
	}
	password := rand.Text()
	if err := os.WriteFile(l.password(), []byte(password+"\n"), 0o600); err != nil {
		return Binaries{}, "", err
	}
	unfinished := l.pgdata() + ".new"
	if err := os.RemoveAll(unfinished); err != nil {
		return Binaries{}, "", err
	}
	if err := os.Mkdir(unfinished, 0o700); err != nil {
		return Binaries{}, "", err
	}
	if err := who.own(unfinished); err != nil {
		return Binaries{}, "", err
	}
	if err := initdb(ctx, bin, l, who, cfg, unfinished, password); err != nil {
		return Binaries{}, "", err
	}
	return bin, password, os.Rename(unfinished, l.pgdata())
}

func initdb(ctx context.Context, bin Binaries, l *layout, who account, cfg Config, target, password string) error {
	// initdb reads the password as the account, which cannot open our own file.
	passwordFile := filepath.Join(l.sockets(), "password")
	if err := os.WriteFile(passwordFile, []byte(password+"\n"), 0o600); err != nil {
		return err
	}
	if err := who.own(passwordFile); err != nil {
		return err
	}
	err := runInitdb(ctx, bin, who, cfg, target, passwordFile)
	return errors.Join(err, os.Remove(passwordFile))
}

func runInitdb(ctx context.Context, bin Binaries, who account, cfg Config, target, passwordFile string) error {
	args := []string{
		"-D", target, "--encoding=UTF8", "--locale=C", "--username=" + superuser,
		"--pwfile=" + passwordFile, "--auth=scram-sha-256", "--no-instructions",
	}
	if cfg.Ephemeral {
		args = append(args, "--no-sync")
	}
	cmd := command(bin, "initdb", args, who)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	p, err := startProcess(cmd)
	if err != nil {
		return &StartError{Step: "initdb", Err: err}
	}
	if !p.wait(ctx) {
		if err := p.destroy(); err != nil {
			return err
		}
		return &StartError{Step: "initdb", Log: lastLines(output.Bytes()), Err: ctx.Err()}
	}
	if p.err != nil {
		return &StartError{Step: "initdb", Log: lastLines(output.Bytes()), Err: p.err}
	}
	return nil
}

// command is a program of PostgreSQL as the account. It gets little of our
// environment: PG* variables would redirect it, others may be secrets.
func command(bin Binaries, program string, args []string, who account) *exec.Cmd {
	cmd := exec.Command(filepath.Join(bin.Dir, program), args...)
	// Our own working directory may be closed to the account.
	cmd.Dir = "/"
	cmd.Env = []string{"LC_ALL=C", "TZ=UTC"}
	for _, name := range []string{"PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"} {
		if value, set := os.LookupEnv(name); set {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
	}
	cmd.SysProcAttr = sysProcAttr(who)
	return cmd
}

// lastLines is what of an output is worth showing in an error.
func lastLines(output []byte) string {
	const most = 20
	lines := strings.Split(strings.TrimSpace(string(output)), "\n")
	if len(lines) > most {
		lines = lines[len(lines)-most:]
	}
	return strings.Join(lines, "\n")
}
