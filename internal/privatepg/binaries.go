package privatepg

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// minMajor is the oldest PostgreSQL that Leasehold supports.
	minMajor = 14
	// envBinDir names the variable that overrides the search.
	envBinDir = "LEASEHOLD_PG_BIN"
)

// binPatterns are the places, beside the PATH, where packages put the server's
// binaries. Debian keeps them out of the PATH on purpose.
var binPatterns = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/opt/homebrew/opt/postgresql@*/bin",
	"/usr/local/opt/postgresql@*/bin",
	"/home/linuxbrew/.linuxbrew/opt/postgresql@*/bin",
}

var versionText = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

// Binaries are the programs of one PostgreSQL installation.
type Binaries struct {
	// Dir is the folder that holds initdb and postgres.
	Dir string
	// Major is the major version, for example 17.
	Major int
}

// Find looks for PostgreSQL 14 or newer: in the folder LEASEHOLD_PG_BIN if that
// is set, and nowhere else then; on the PATH; where Debian, RHEL and Homebrew
// put it, the newest first. Fails with *[NotFoundError].
func Find() (Binaries, error) {
	all, err := findAll()
	if err != nil {
		return Binaries{}, err
	}
	return all[0], nil
}

// findFor prefers the installation that can open data of the given major
// version: a newer one, installed later, must not make kept data unusable.
func findFor(dataDir string, dataMajor int) (Binaries, error) {
	all, err := findAll()
	if err != nil {
		return Binaries{}, err
	}
	var majors []int
	for _, found := range all {
		if found.Major == dataMajor {
			return found, nil
		}
		majors = append(majors, found.Major)
	}
	slices.Sort(majors)
	return Binaries{}, &VersionError{DataDir: dataDir, DataMajor: dataMajor, Installed: slices.Compact(majors)}
}

// findAll returns every usable installation, the preferred one first.
func findAll() ([]Binaries, error) {
	env := os.Getenv(envBinDir)
	dirs := []string{env}
	if env == "" {
		dirs = append(filepath.SplitList(os.Getenv("PATH")), packagedDirs(binPatterns)...)
	}
	missing := &NotFoundError{EnvDir: env}
	var all []Binaries
	seen := map[string]bool{}
	for _, dir := range dirs {
		postgres, err := filepath.EvalSymlinks(filepath.Join(dir, "postgres"))
		if err != nil || seen[postgres] {
			continue
		}
		seen[postgres] = true
		found, err := inspect(filepath.Dir(postgres))
		if err != nil {
			missing.Rejected = append(missing.Rejected, err.Error())
			continue
		}
		all = append(all, found)
	}
	if len(all) == 0 {
		return nil, missing
	}
	return all, nil
}

// packagedDirs expands the patterns, for each the newest version first.
func packagedDirs(patterns []string) []string {
	var dirs []string
	for _, pattern := range patterns {
		// Glob fails on a malformed pattern only, and these are constants.
		matches, _ := filepath.Glob(pattern)
		slices.SortFunc(matches, func(a, b string) int { return cmp.Compare(pathVersion(b), pathVersion(a)) })
		dirs = append(dirs, matches...)
	}
	return dirs
}

var pathNumber = regexp.MustCompile(`[/@-](\d+)(\.\d+)?/bin$`)

// pathVersion reads the version from a path, by number: as text 9.6 sorts
// behind 17.
func pathVersion(path string) int {
	match := pathNumber.FindStringSubmatch(path)
	if match == nil {
		return 0
	}
	number, _ := strconv.Atoi(match[1])
	return number
}

// inspect accepts a folder only if both programs run there and are of one
// version: a PATH may hold wrapper scripts that stand alone, and packages may
// put the client's programs where the server's are not.
func inspect(dir string) (Binaries, error) {
	major, err := programMajor(filepath.Join(dir, "postgres"))
	if err != nil {
		return Binaries{}, err
	}
	if major < minMajor {
		return Binaries{}, fmt.Errorf("%s is version %d", filepath.Join(dir, "postgres"), major)
	}
	initdb, err := programMajor(filepath.Join(dir, "initdb"))
	if err != nil {
		return Binaries{}, err
	}
	if initdb != major {
		return Binaries{}, fmt.Errorf("%s holds initdb %d and postgres %d", dir, initdb, major)
	}
	return Binaries{Dir: dir, Major: major}, nil
}

func programMajor(path string) (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "--version")
	// A wrapper script may leave a child behind that keeps the pipe open.
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("%s does not run: %s", path, firstLine(err.Error()))
	}
	match := versionText.FindSubmatch(out)
	if match == nil {
		return 0, fmt.Errorf("%s is not PostgreSQL's", path)
	}
	return strconv.Atoi(string(match[1]))
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}
