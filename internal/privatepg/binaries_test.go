package privatepg

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// fakeInstallation makes a folder with programs that only know their version.
func fakeInstallation(t *testing.T, programs map[string]string) string {
	t.Helper()
	dir := folder(t)
	for name, version := range programs {
		script := fmt.Sprintf("#!/bin/sh\necho '%s (PostgreSQL) %s'\n", name, version)
		noError(t, os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755))
	}
	return dir
}

func TestFindPrefersTheEnvironmentAndThenThePath(t *testing.T) {
	chosen := fakeInstallation(t, map[string]string{"postgres": "17.2 (Debian 17.2-1)", "initdb": "17.2"})
	onPath := fakeInstallation(t, map[string]string{"postgres": "18devel", "initdb": "18devel"})
	// A folder with a lone wrapper comes first on the PATH and is passed over.
	wrapper := fakeInstallation(t, map[string]string{"postgres": "16.1", "pg_ctl": "16.1"})
	t.Setenv("PATH", strings.Join([]string{"", wrapper, onPath, os.Getenv("PATH")}, ":"))

	t.Setenv(envBinDir, chosen)
	got, err := Find()
	noError(t, err)
	if want := (Binaries{Dir: chosen, Major: 17}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	t.Setenv(envBinDir, "")
	got, err = Find()
	noError(t, err)
	if want := (Binaries{Dir: onPath, Major: 18}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	// Kept data is opened by the version that made it, though a newer one is there.
	got, err = findFor("dev", installed(t).Major)
	noError(t, err)
	if got != installed(t) {
		t.Errorf("got %+v, want %+v", got, installed(t))
	}
}

// installed is the real PostgreSQL of this machine, found beside the fakes.
func installed(t *testing.T) Binaries {
	t.Helper()
	all, err := findAll()
	noError(t, err)
	return all[len(all)-1]
}

func TestFindFollowsLinksToWhereBothProgramsAre(t *testing.T) {
	real := fakeInstallation(t, map[string]string{"postgres": "15.3", "initdb": "15.3"})
	links := folder(t)
	noError(t, os.Symlink(filepath.Join(real, "postgres"), filepath.Join(links, "postgres")))
	t.Setenv(envBinDir, links)
	got, err := Find()
	noError(t, err)
	if got.Dir != real {
		t.Errorf("got %s, want %s", got.Dir, real)
	}
}

func TestNotFoundIsOneLineWithTheRemedy(t *testing.T) {
	for name, programs := range map[string]map[string]string{
		"nothing there":   {},
		"too old":         {"postgres": "13.9", "initdb": "13.9"},
		"no initdb":       {"postgres": "17.0"},
		"two versions":    {"postgres": "17.0", "initdb": "16.0"},
		"not PostgreSQL":  {"postgres": "\nanything", "initdb": "17.0"},
		"only the client": {"pg_ctl": "17.0", "psql": "17.0"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := fakeInstallation(t, programs)
			t.Setenv(envBinDir, dir)
			_, err := Find()
			var missing *NotFoundError
			if !errors.As(err, &missing) || missing.EnvDir != dir {
				t.Fatalf("got %v", err)
			}
			if _, startErr := Start(t.Context(), Config{Ephemeral: true}); !errors.As(startErr, &missing) {
				t.Errorf("start: %v", startErr)
			}
			if !strings.Contains(err.Error(), dir) || strings.Contains(err.Error(), "\n") {
				t.Errorf("not one line that names the folder: %q", err)
			}
		})
	}
	remedy := (&NotFoundError{Rejected: []string{"/usr/bin/postgres is version 12"}}).Error()
	for _, want := range []string{"apt-get install postgresql", "brew install postgresql@17", envBinDir, "version 12"} {
		if !strings.Contains(remedy, want) {
			t.Errorf("%q is not in: %s", want, remedy)
		}
	}
}

func TestPackagedFoldersAreOrderedByNumber(t *testing.T) {
	t.Parallel()
	root := folder(t)
	for _, dir := range []string{"9.6", "17", "15"} {
		noError(t, os.MkdirAll(filepath.Join(root, dir, "bin"), 0o755))
		noError(t, os.MkdirAll(filepath.Join(root, "postgresql@"+dir, "bin"), 0o755))
	}
	got := packagedDirs([]string{filepath.Join(root, "[0-9]*", "bin"), filepath.Join(root, "postgresql@*", "bin")})
	want := []string{
		filepath.Join(root, "17/bin"), filepath.Join(root, "15/bin"), filepath.Join(root, "9.6/bin"),
		filepath.Join(root, "postgresql@17/bin"), filepath.Join(root, "postgresql@15/bin"),
		filepath.Join(root, "postgresql@9.6/bin"),
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}
