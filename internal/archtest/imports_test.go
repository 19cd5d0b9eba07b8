// Package archtest holds the rules of who may import whom against the whole program. A linter
// sees a forbidden import where it is written; this sees it also where it comes in by a detour.
package archtest

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/leasehold/leasehold"

// rule forbids a package, and what it imports, to import anything below some paths.
type rule struct {
	from   string   // below the module
	forbid []string // import paths, with all below them; "./" is our module
	but    []string // exceptions
	why    string
}

var rules = []rule{
	{
		from: "store", forbid: []string{"google.golang.org/grpc", "google.golang.org/protobuf", "./gen", "github.com/jackc", "./server", "./client"},
		why: "the domain knows neither the wire nor the driver",
	},
	{
		from: "store/postgres", forbid: []string{"google.golang.org/grpc", "google.golang.org/protobuf", "./gen", "./server", "./client"},
		why: "SQL does not know who calls it",
	},
	{
		from: "server", forbid: []string{"github.com/jackc", "database/sql", "./store/postgres", "./client", "./cmd"},
		why: "the gRPC side works over any store",
	},
	{
		from: "client", forbid: []string{"./"}, but: []string{"./gen", "./client"},
		why: "the worker runtime depends on the contract only",
	},
	{
		from: "gen", forbid: []string{"./"}, but: []string{"./gen"},
		why: "generated code depends on no code of ours",
	},
	{
		from: "examples", forbid: []string{"./"}, but: []string{"./gen", "./client", "./examples"},
		why: "examples do what a user's program can do",
	},
}

// concrete are packages that only the binary may name.
var concrete = map[string]string{
	"store/postgres": "cmd/leasehold",
}

// testsOnly are packages that no program may contain.
var testsOnly = []string{
	"store/storetest", "store/postgres/backdoor", "internal/privatepg/pgtest", "internal/faultproxy", "internal/replica", "server/servertest", "internal/doctest",
	"internal/chaos", "internal/testca",
}

// pkg is what `go list` says of a package.
type pkg struct {
	ImportPath string
	Imports    []string
	Deps       []string
}

// list asks about packages of this module, with the files of tags if any.
func list(t *testing.T, args ...string) []pkg {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-json=ImportPath,Imports,Deps"}, args...)...)
	cmd.Dir = "../.."
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	var pkgs []pkg
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			return pkgs
		}
		if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
}

// within tells whether an import path is one of paths or below it.
func within(importPath string, paths []string) bool {
	return slices.ContainsFunc(paths, func(p string) bool {
		if rest, ours := strings.CutPrefix(p, "./"); ours {
			p = path.Join(module, rest)
		}
		return importPath == p || strings.HasPrefix(importPath, p+"/")
	})
}

// broken lists the imports of p, direct or not, that break r.
func (r rule) broken(p pkg) []string {
	if !within(p.ImportPath, []string{"./" + r.from}) {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(p.Deps), func(dep string) bool {
		return !within(dep, r.forbid) || within(dep, r.but)
	})
}

// applies tells whether r speaks of p: a rule for a folder holds for what lies below it, unless
// a rule of its own does, and never for what only tests use.
func (r rule) applies(p pkg) bool {
	for _, other := range rules {
		if other.from != r.from && strings.HasPrefix(other.from, r.from+"/") && within(p.ImportPath, []string{"./" + other.from}) {
			return false
		}
	}
	return !within(p.ImportPath, ours(testsOnly))
}

func ours(paths []string) []string {
	out := make([]string, len(paths))
	for i, p := range paths {
		out[i] = "./" + p
	}
	return out
}

func TestImportRules(t *testing.T) {
	for _, p := range list(t, "./...") {
		for _, r := range rules {
			if !r.applies(p) {
				continue
			}
			for _, dep := range r.broken(p) {
				t.Errorf("%s imports %s, directly or not: %s", p.ImportPath, dep, r.why)
			}
		}
	}
}

func TestOnlyTheBinaryNamesAConcreteStore(t *testing.T) {
	for _, p := range list(t, "./...") {
		for _, dep := range p.Imports {
			for name, who := range concrete {
				if within(dep, ours([]string{name})) && !within(p.ImportPath, ours(append([]string{name, who}, testsOnly...))) {
					t.Errorf("%s imports %s", p.ImportPath, dep)
				}
			}
		}
	}
}

func TestProgramsContainNoTestCode(t *testing.T) {
	programs := list(t, "./cmd/...", "./examples/...")
	if len(programs) == 0 {
		t.Fatal("there are no programs")
	}
	for _, p := range programs {
		for _, dep := range append(slices.Clone(p.Deps), p.ImportPath) {
			if within(dep, append(ours(testsOnly), "testing")) {
				t.Errorf("%s contains %s", p.ImportPath, dep)
			}
		}
	}
}

// TestNamesThatSayNothing: a package by such a name collects what belongs nowhere.
func TestNamesThatSayNothing(t *testing.T) {
	for _, p := range list(t, "./...") {
		for _, part := range strings.Split(strings.TrimPrefix(p.ImportPath, module), "/") {
			if slices.Contains([]string{"pkg", "util", "utils", "common", "models", "helpers", "misc"}, part) {
				t.Errorf("%s has a folder named %q", p.ImportPath, part)
			}
		}
	}
}

// TestRulesCanFail: a rule with a misspelt path would never complain.
func TestRulesCanFail(t *testing.T) {
	at := func(from string, deps ...string) pkg {
		return pkg{ImportPath: path.Join(module, from), Deps: deps}
	}
	for _, c := range []struct {
		p    pkg
		want bool
	}{
		{at("store", "fmt", module+"/internal/loop"), false},
		{at("store", "google.golang.org/grpc/codes"), true},
		{at("store", "github.com/jackc/pgx/v5"), true},
		{at("store/postgres", "github.com/jackc/pgx/v5"), false},
		{at("store/postgres", module+"/gen/leasehold/v1"), true},
		{at("store/storetest", module+"/gen/leasehold/v1"), false},
		{at("server", module+"/store"), false},
		{at("server", module+"/store/postgres"), true},
		{at("server", "github.com/jackc/pgx/v5/pgconn"), true},
		{at("client", module+"/gen/leasehold/v1"), false},
		{at("client", module+"/store"), true},
		{at("clients", module+"/store"), false},
		{at("examples/demo", module+"/internal/loop"), true},
	} {
		broken := slices.ContainsFunc(rules, func(r rule) bool { return r.applies(c.p) && len(r.broken(c.p)) > 0 })
		if broken != c.want {
			t.Errorf("%s with %v: broken %v, want %v", c.p.ImportPath, c.p.Deps, broken, c.want)
		}
	}
	for _, r := range rules {
		if r.from != "client" && len(list(t, "./"+r.from+"/...")) == 0 {
			t.Errorf("the rule for %s speaks of no package", r.from)
		}
	}
}
