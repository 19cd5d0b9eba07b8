package doctest

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

const reliability = "docs/reliability.md"

// scenarios is how many failures the page lists.
const scenarios = 68

// testSources are what tests are declared in: the test files of a package, and those of the
// store's suite.
type testSources struct {
	t    *testing.T
	read map[string]string // by glob from the root
}

func (s *testSources) text(glob string) string {
	s.t.Helper()
	if text, known := s.read[glob]; known {
		return text
	}
	files, err := filepath.Glob(filepath.Join(Root(s.t), filepath.FromSlash(glob)))
	if err != nil {
		s.t.Fatal(err)
	}
	var all strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			s.t.Fatal(err)
		}
		all.Write(text)
	}
	s.read[glob] = all.String()
	return s.read[glob]
}

// has tells whether a test of that name exists: package.TestName, storetest.Case or, for a
// table of cases, storetest.Prefix*.
func (s *testSources) has(name string) bool {
	s.t.Helper()
	at := strings.LastIndex(name, ".")
	if at < 0 {
		return false
	}
	pkg, test := name[:at], name[at+1:]
	if pkg != "storetest" {
		return strings.Contains(s.text(pkg+"/*_test.go"), "\nfunc "+test+"(t *testing.T) {")
	}
	if prefix, table := strings.CutSuffix(test, "*"); table {
		return strings.Contains(s.text("store/storetest/suite*.go"), `name: "`+prefix+`" +`)
	}
	return strings.Contains(s.text("store/storetest/suite*.go"), `{name: "`+test+`"`)
}

var namedTest = regexp.MustCompile(`^([a-z/]+)\.(Test|[RS][0-9])\w*\*?$`)

// TestEveryFailureHasItsTest: each scenario of the page names tests that exist. A test that is renamed without its row would
// leave a promise that nobody keeps.
func TestEveryFailureHasItsTest(t *testing.T) {
	t.Parallel()
	page, sources := Read(t, reliability), &testSources{t: t, read: map[string]string{}}
	last, rows, named := 0, 0, 0
	for _, heading := range []string{"Wrong results", "Stuck for long", "Slow, starved, leaking", "Hard to operate"} {
		for _, row := range page.Table(t, heading) {
			number, err := strconv.Atoi(row[0])
			if err != nil || number <= last || row[1] == "" {
				t.Errorf("row %q behind row %d: %q", row[0], last, row[1])
			}
			last, rows = number, rows+1
			tests := 0
			for _, word := range Words(row[2]) {
				if strings.HasPrefix(word, "make ") {
					continue // TestMakeTargetsExist
				}
				if tests++; !namedTest.MatchString(word) || !sources.has(word) {
					t.Errorf("scenario %d: there is no test %s", number, word)
				}
			}
			named += tests
			if tests == 0 {
				t.Errorf("scenario %d has no test: %s", number, row[2])
			}
		}
	}
	if rows != scenarios || named < 2*scenarios {
		t.Errorf("%d scenarios with %d tests, want %d", rows, named, scenarios)
	}
}

// oldCode is what a command that shows a bug ends with: the package, and the test.
var oldCode = regexp.MustCompile(`(?:^(?:mixed|today) .* (\./\S+) (Test\w+)(?:/\w+)?$)|(?:go test -count=1 -run (Test\w+) (\./\S+)\))`)

// TestEveryBugHasItsCommand, which runs a test that exists on the code of a commit.
func TestEveryBugHasItsCommand(t *testing.T) {
	t.Parallel()
	sources := &testSources{t: t, read: map[string]string{}}
	bugs := Read(t, reliability).Table(t, "Bugs found")
	for _, row := range bugs {
		commands := Words(row[2])
		if len(commands) != 1 || row[0] == "" || row[1] == "" {
			t.Errorf("%s: %q has no command of its own", row[0], row[2])
			continue
		}
		m := oldCode.FindStringSubmatch(commands[0])
		if m == nil || !regexp.MustCompile(` [0-9a-f]{7}[ ^]`).MatchString(commands[0]) {
			t.Errorf("%s: the command runs no test on old code: %s", row[0], commands[0])
			continue
		}
		pkg, test := m[1]+m[4], m[2]+m[3]
		if !sources.has(strings.TrimPrefix(pkg, "./") + "." + test) {
			t.Errorf("%s: there is no %s in %s", row[0], test, pkg)
		}
	}
	if len(bugs) < 10 {
		t.Errorf("%d bugs", len(bugs))
	}
}

// TestNamesOfTestsAreLookedUp: what the two tests above rely on can fail.
func TestNamesOfTestsAreLookedUp(t *testing.T) {
	t.Parallel()
	s := &testSources{t: t, read: map[string]string{}}
	for name, want := range map[string]bool{
		"internal/doctest.TestNamesOfTestsAreLookedUp": true, "internal/doctest.TestNames": false, "server.TestNamesOfTestsAreLookedUp": false,
		"nowhere.TestNamesOfTestsAreLookedUp": false, "TestNamesOfTestsAreLookedUp": false,
		"storetest.R29_never_overflows": true, "storetest.R29_never": false, "storetest.S6_*": true, "storetest.S7_*": false,
	} {
		if got := s.has(name); got != want {
			t.Errorf("%s exists: %t", name, got)
		}
	}
}
