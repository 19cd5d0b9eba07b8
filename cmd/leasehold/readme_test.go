package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/leasehold/leasehold/internal/doctest"
)

// setting is one flag of one command: a row of the README's table of configuration, or what
// the command really has.
type setting struct{ command, flag, env, value string }

// TestReadmeHasEverySetting, and none that is gone.
func TestReadmeHasEverySetting(t *testing.T) {
	t.Parallel()
	real := realSettings()
	told := toldSettings(t, doctest.Read(t, "README.md").Table(t, "Configuration"))
	for _, s := range told {
		if !slices.Contains(real, s) {
			t.Errorf("the README has what the binary has not: %+v", s)
		}
	}
	for _, s := range real {
		if !slices.Contains(told, s) {
			t.Errorf("the README lacks %+v", s)
		}
	}
}

// realSettings leaves out the operators' commands and the sidecar: docs/operating.md, docs/sidecar.md
// and their help tell of those.
func realSettings() []setting {
	elsewhere := []string{"sidecar"}
	for _, cmd := range newOperators(streams{}, os.LookupEnv) {
		elsewhere = append(elsewhere, cmd.Name())
	}
	var settings []setting
	for _, cmd := range newRoot(streams{}, os.LookupEnv).Commands() {
		if slices.Contains(elsewhere, cmd.Name()) {
			continue
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			s := setting{command: cmd.Name(), flag: f.Name, env: envName(f.Name), value: f.DefValue}
			if slices.Contains([]string{"proto", "bench", "conformance"}, cmd.Name()) {
				s.env = "" // they have nothing that would be set once for a service
			}
			settings = append(settings, s)
		})
	}
	return settings
}

// toldSettings reads the table: flag, environment, default, commands, meaning. A default that
// is another one in a command stands in brackets behind its name.
func toldSettings(t *testing.T, rows [][]string) []setting {
	t.Helper()
	var settings []setting
	for _, row := range rows {
		flags, env, defaults := doctest.Words(row[0]), doctest.Words(row[1]), doctest.Words(row[2])
		if len(flags) != 1 || len(env) > 1 || row[4] == "" {
			t.Fatalf("cannot read the row %q", row)
		}
		s := setting{flag: strings.TrimPrefix(flags[0], "--"), env: strings.Join(env, "")}
		for command := range strings.SplitSeq(row[3], ", ") {
			s.command, s.value = command, ""
			if len(defaults) > 0 {
				s.value = defaults[0]
			}
			if len(defaults) == 2 && strings.Contains(row[2], fmt.Sprintf("(%s: `%s`)", command, defaults[1])) {
				s.value = defaults[1]
			}
			settings = append(settings, s)
		}
	}
	return settings
}

// TestReadmeHasTheTour as dev prints it, for the address that dev has by default.
func TestReadmeHasTheTour(t *testing.T) {
	t.Parallel()
	tell := newTour("127.0.0.1:7070", "127.0.0.1:7071", func(string) (string, error) { return "/usr/local/bin/grpcurl", nil })
	var printed strings.Builder
	if err := tourTemplate.Execute(&printed, tell); err != nil {
		t.Fatal(err)
	}
	want := tourLines(printed.String())
	var got []string
	for _, b := range doctest.Read(t, "README.md").Blocks("sh") {
		got = append(got, tourLines(b.Text)...)
	}
	if len(want) != 5 || !slices.Equal(got, want) {
		t.Errorf("the README has\n%s\ndev prints\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
