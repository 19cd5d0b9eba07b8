package main

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/leasehold/leasehold/internal/doctest"
)

// composeFile has what deploy/compose.yaml uses of the format; another word is a slip.
type composeFile struct {
	Name     string
	Services map[string]composeService
	Volumes  map[string]any
}

type composeService struct {
	Image       string
	Build       struct{ Context, Dockerfile string }
	Command     []string
	Environment map[string]string
	Volumes     []string
	Ports       []string
	Healthcheck struct {
		Test              []string
		Interval, Timeout string
		Retries           int
	}
	DependsOn       map[string]struct{ Condition string } `yaml:"depends_on"`
	ReadOnly        bool                                  `yaml:"read_only"`
	CapDrop         []string                              `yaml:"cap_drop"`
	SecurityOpt     []string                              `yaml:"security_opt"`
	StopSignal      string                                `yaml:"stop_signal"`
	StopGracePeriod string                                `yaml:"stop_grace_period"`
	Restart         string
}

func readCompose(t *testing.T) composeFile {
	t.Helper()
	file, err := os.Open(filepath.Join(doctest.Root(t), "deploy", "compose.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	decoder := yaml.NewDecoder(file)
	decoder.KnownFields(true)
	var compose composeFile
	if err := decoder.Decode(&compose); err != nil {
		t.Fatal(err)
	}
	return compose
}

// interpolate fills in what Compose takes from the caller's environment.
func interpolate(value string) string {
	return regexp.MustCompile(`\$\{\w+(:\?[^}]*)?\}`).ReplaceAllString(value, "secret")
}

// dockerfile is the instructions of deploy/Dockerfile in order, continuation lines joined.
type dockerfile []instruction

type instruction struct{ name, rest string }

func readDockerfile(t *testing.T) dockerfile {
	t.Helper()
	text := readFile(t, doctest.Root(t), "deploy/Dockerfile")
	text = strings.ReplaceAll(text, "\\\n", " ")
	var d dockerfile
	for line := range strings.SplitSeq(text, "\n") {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, rest, _ := strings.Cut(line, " ")
		d = append(d, instruction{name, strings.TrimSpace(rest)})
	}
	return d
}

// last is what the last instruction of a name says: that of the final stage.
func (d dockerfile) last(t *testing.T, name string) string {
	t.Helper()
	for _, i := range slices.Backward(d) {
		if i.name == name {
			return i.rest
		}
	}
	t.Fatalf("the Dockerfile has no %s", name)
	return ""
}

// list is an instruction in the form of a list, which needs no shell.
func (d dockerfile) list(t *testing.T, name string) []string {
	t.Helper()
	var words []string
	if err := yaml.Unmarshal([]byte(d.last(t, name)), &words); err != nil {
		t.Fatalf("%s is no list: %v", name, err)
	}
	return words
}

func (d dockerfile) env(t *testing.T) map[string]string {
	t.Helper()
	env := map[string]string{}
	for _, i := range d {
		if i.name != "ENV" {
			continue
		}
		for pair := range strings.FieldsSeq(i.rest) {
			name, value, found := strings.Cut(pair, "=")
			if !found {
				t.Fatalf("ENV %s", i.rest)
			}
			env[name] = value
		}
	}
	return env
}

// command is the command line of a container: what follows ENTRYPOINT.
func (d dockerfile) command(t *testing.T, instead []string) []string {
	t.Helper()
	line := append(d.list(t, "ENTRYPOINT"), d.list(t, "CMD")...)
	if instead != nil {
		line = append(d.list(t, "ENTRYPOINT"), instead...)
	}
	if len(line) < 2 || line[0] != "/leasehold" {
		t.Fatalf("the container runs %q", line)
	}
	return line[1:]
}

// mustConfigure passes a container's command line and environment through the parser of the
// command, and refuses settings that the command does not know.
func mustConfigure(t *testing.T, line []string, env map[string]string) *Config {
	t.Helper()
	if line[0] != "serve" {
		t.Fatalf("the container runs %q, want serve", line)
	}
	cmd, _, err := newRoot(streams{}, os.LookupEnv).Find(line)
	if err != nil {
		t.Fatal(err)
	}
	for name := range env {
		flag := strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(name, envPrefix), "_", "-"))
		if strings.HasPrefix(name, envPrefix) && cmd.Flags().Lookup(flag) == nil {
			t.Errorf("serve knows no %s", name)
		}
	}
	cfg, err := loaded(t, "serve", env, line[1:]...)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func TestDockerfileConfiguresTheService(t *testing.T) {
	t.Parallel()
	d := readDockerfile(t)
	env := d.env(t)
	env["LEASEHOLD_DATABASE_URL"] = "postgres://user@host/database" // as its own example gives it
	for _, name := range []string{"LEASEHOLD_ACCESS_FILE", "LEASEHOLD_TLS_CERT", "LEASEHOLD_TLS_KEY"} {
		env[name] = "/etc/leasehold/" + name // which only whoever runs it can give
	}
	cfg := mustConfigure(t, d.command(t, nil), env)
	exposed := strings.Fields(d.last(t, "EXPOSE"))
	if want := []string{port(t, cfg.Listen), port(t, cfg.HTTP)}; !slices.Equal(exposed, want) {
		t.Errorf("EXPOSE %q, and the service listens on %q", exposed, want)
	}
	if user := d.last(t, "USER"); !regexp.MustCompile(`^[1-9]\d*:[1-9]\d*$`).MatchString(user) {
		t.Errorf("USER %s is not a number other than root's", user)
	}
}

// port is that of an address that is open beyond the loopback interface.
func port(t *testing.T, address string) string {
	t.Helper()
	number, open := strings.CutPrefix(address, ":")
	if !open {
		t.Errorf("in a container nobody reaches %q", address)
	}
	return number
}

func TestComposeConfiguresTheService(t *testing.T) {
	t.Parallel()
	d, compose := readDockerfile(t), readCompose(t)
	s, database := compose.Services["leasehold"], compose.Services["postgres"]
	env := d.env(t)
	for name, value := range s.Environment {
		env[name] = interpolate(value)
	}
	cfg := mustConfigure(t, d.command(t, s.Command), env)

	host := "leasehold at postgres:5432 as leasehold"
	if got := redact(cfg.DatabaseURL); got != host || database.Environment["POSTGRES_DB"] != "leasehold" || database.Environment["POSTGRES_USER"] != "leasehold" {
		t.Errorf("the service uses %q, the database is %v", got, database.Environment)
	}
	if s.Environment["PGPASSWORD"] != database.Environment["POSTGRES_PASSWORD"] || interpolate(s.Environment["PGPASSWORD"]) != "secret" {
		t.Errorf("passwords %q and %q", s.Environment["PGPASSWORD"], database.Environment["POSTGRES_PASSWORD"])
	}
	want := []string{"127.0.0.1:7070:" + port(t, cfg.Listen), "127.0.0.1:7071:" + port(t, cfg.HTTP)}
	if !slices.Equal(s.Ports, want) {
		t.Errorf("ports %q, want %q", s.Ports, want)
	}
	grace, err := time.ParseDuration(s.StopGracePeriod)
	if err != nil || grace <= cfg.DrainTimeout {
		t.Errorf("the service is killed after %v, %v, and drains for %v", grace, err, cfg.DrainTimeout)
	}
	if !s.ReadOnly || !slices.Equal(s.CapDrop, []string{"ALL"}) || cfg.Migrate != migrateAuto || cfg.ReadyFile != "" {
		t.Errorf("read-only %v, without %q, migrate %q, ready file %q", s.ReadOnly, s.CapDrop, cfg.Migrate, cfg.ReadyFile)
	}
	if s.DependsOn["postgres"].Condition != "service_healthy" || len(database.Healthcheck.Test) < 2 || database.Healthcheck.Test[0] != "CMD" {
		t.Errorf("it waits for %v, which is healthy by %q", s.DependsOn, database.Healthcheck.Test)
	}
	if at := filepath.Join(doctest.Root(t), "deploy", s.Build.Context, s.Build.Dockerfile); !exists(at) {
		t.Errorf("there is no %s", at)
	}
	for _, volume := range database.Volumes {
		name, _, _ := strings.Cut(volume, ":")
		if _, declared := compose.Volumes[name]; !declared {
			t.Errorf("the volume %s is not declared", name)
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// TestDockerfileBuildsAStaticBinary runs the build line of the Dockerfile on what its ignore
// file lets through: an image from scratch has no dynamic linker.
func TestDockerfileBuildsAStaticBinary(t *testing.T) {
	t.Parallel()
	d := readDockerfile(t)
	source, out := t.TempDir(), filepath.Join(t.TempDir(), "leasehold")
	copyContext(t, source)
	line := ""
	for _, i := range d {
		if i.name == "RUN" && strings.Contains(i.rest, "go build") {
			line = i.rest
		}
	}
	if from := "--from=build /out/leasehold /leasehold"; !strings.Contains(line, " -o /out/leasehold ") || !slices.Contains(d, instruction{"COPY", from}) {
		t.Fatalf("what is built is not what is copied: %s", line)
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", strings.Replace(line, "/out/leasehold", out, 1))
	cmd.Dir = source
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOFLAGS=-mod=readonly", "VERSION=1.2.3-test")
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", line, err, said)
	}
	mustBeStatic(t, out)
	if runtime.GOOS != "linux" {
		return // it was built for the container
	}
	said, err := exec.CommandContext(t.Context(), out, "version").Output()
	if err != nil || !strings.HasPrefix(string(said), "leasehold 1.2.3-test ") {
		t.Errorf("version says %q, %v", said, err)
	}
}

func mustBeStatic(t *testing.T, path string) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	binary, err := elf.NewFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range binary.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("the binary has a segment %v: it needs a dynamic linker", p.Type)
		}
	}
}

// copyContext copies what deploy/Dockerfile.dockerignore lets through.
func copyContext(t *testing.T, to string) {
	t.Helper()
	root := doctest.Root(t)
	patterns := strings.Fields(regexp.MustCompile(`(?m)^#.*$`).ReplaceAllString(readFile(t, root, "deploy/Dockerfile.dockerignore"), ""))
	if patterns[0] != "*" {
		t.Fatalf("the ignore file begins with %s, want *", strconv.Quote(patterns[0]))
	}
	for _, pattern := range patterns[1:] {
		name, is := strings.CutPrefix(pattern, "!")
		if !is {
			t.Fatalf("the ignore file has %s", pattern)
		}
		from := filepath.Join(root, name)
		info, err := os.Stat(from)
		if err == nil && info.IsDir() {
			err = os.CopyFS(filepath.Join(to, name), os.DirFS(from))
		} else if err == nil {
			err = os.WriteFile(filepath.Join(to, name), []byte(readFile(t, root, name)), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func readFile(t *testing.T, dir, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
