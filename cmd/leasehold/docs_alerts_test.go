package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/leasehold/leasehold/internal/doctest"
)

// alertRule is one rule of deploy/prometheus/alerts.yml.
type alertRule struct {
	Alert       string
	Expr        string
	For         string
	Labels      map[string]string
	Annotations map[string]string
}

func alertRules(t *testing.T) []alertRule {
	t.Helper()
	file, err := os.Open(filepath.Join(doctest.Root(t), "deploy", "prometheus", "alerts.yml"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var rules struct {
		Groups []struct {
			Name  string
			Rules []alertRule
		}
	}
	decoder := yaml.NewDecoder(file)
	decoder.KnownFields(true)
	if err := decoder.Decode(&rules); err != nil {
		t.Fatal(err)
	}
	if len(rules.Groups) != 1 || len(rules.Groups[0].Rules) < 15 {
		t.Fatalf("alerts.yml has %d groups", len(rules.Groups))
	}
	return rules.Groups[0].Rules
}

// panel is one panel of the dashboard, as far as it asks Prometheus.
type panel struct {
	ID      int
	Title   string
	Targets []struct{ RefID, Expr string }
}

func dashboardPanels(t *testing.T) []panel {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(doctest.Root(t), "deploy", "grafana", "leasehold.json"))
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct{ Panels []panel }
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	if len(dashboard.Panels) < 15 {
		t.Fatalf("the dashboard has %d panels", len(dashboard.Panels))
	}
	return dashboard.Panels
}

var metricName = regexp.MustCompile(`\b(?:leasehold|grpc_server)_[a-z0-9_]+`)

// TestExpressionsUseMetricsThatExist: a rule on a metric that was renamed never fires.
func TestExpressionsUseMetricsThatExist(t *testing.T) {
	t.Parallel()
	var known []string
	for _, m := range metricsOfService(t) {
		known = append(known, m.name)
	}
	exists := func(name string) bool {
		for _, part := range []string{"", "_bucket", "_sum", "_count"} {
			if base, is := strings.CutSuffix(name, part); is && slices.Contains(known, base) {
				return true
			}
		}
		return false
	}
	expressions := map[string]string{}
	for _, r := range alertRules(t) {
		expressions["alert "+r.Alert] = r.Expr
	}
	for _, p := range dashboardPanels(t) {
		for _, target := range p.Targets {
			expressions["panel "+p.Title+" "+target.RefID] = target.Expr
		}
	}
	for where, expr := range expressions {
		names := metricName.FindAllString(expr, -1)
		if len(names) == 0 {
			t.Errorf("%s asks for nothing: %s", where, expr)
		}
		for _, name := range names {
			if !exists(name) {
				t.Errorf("%s: there is no metric %s", where, name)
			}
			if strings.HasPrefix(name, "leasehold_database_") && regexp.MustCompile(`sum( by \([a-z, ]*\))? \(`+name).MatchString(expr) {
				t.Errorf("%s adds up what every replica reads: %s", where, expr)
			}
		}
	}
}

// TestAlertsAreInTheRunbook, each with an entry that says what it means, what to look at and
// what to do, and no entry is of an alert that is gone.
func TestAlertsAreInTheRunbook(t *testing.T) {
	t.Parallel()
	doc := doctest.Read(t, "docs/runbook.md")
	text, err := os.ReadFile(filepath.Join(doctest.Root(t), "docs", "runbook.md"))
	if err != nil {
		t.Fatal(err)
	}
	entries := strings.Split(string(text), "\n## ")[1:]
	var names []string
	for _, r := range alertRules(t) {
		names = append(names, r.Alert)
		if !slices.Contains(doc.Headings(), r.Alert) {
			t.Errorf("the runbook has no entry %s", r.Alert)
		}
		if want := "docs/runbook.md#" + doctest.Anchor(r.Alert); r.Annotations["runbook"] != want || r.Annotations["summary"] == "" {
			t.Errorf("the annotations of %s are %v", r.Alert, r.Annotations)
		}
		if s := r.Labels["severity"]; s != "page" && s != "ticket" {
			t.Errorf("the severity of %s is %q", r.Alert, s)
		}
	}
	for _, entry := range entries {
		name, body, _ := strings.Cut(entry, "\n")
		if !slices.Contains(names, name) {
			t.Errorf("the runbook has an entry of no alert: %s", name)
		}
		for _, part := range []string{"**What it means.**", "**Look at.**", "**Do.**"} {
			if !strings.Contains(body, part) {
				t.Errorf("the entry %s lacks %s", name, part)
			}
		}
	}
}

var commandOfRunbook = regexp.MustCompile("`leasehold ([a-z][^`]*)`")

// TestRunbookNamesCommandsThatExist, with flags that they have.
func TestRunbookNamesCommandsThatExist(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(doctest.Root(t), "docs", "runbook.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := commandOfRunbook.FindAllStringSubmatch(string(text), -1)
	if len(found) < 5 {
		t.Fatalf("only %d commands were found", len(found))
	}
	for _, m := range found {
		var words, flags []string
		for _, word := range strings.Fields(m[1]) {
			switch {
			case strings.HasPrefix(word, "--"):
				flags = append(flags, strings.TrimPrefix(word, "--"))
			case word == strings.ToLower(word):
				words = append(words, word)
			}
		}
		cmd, rest, err := newRoot(streams{}, func(string) (string, bool) { return "", false }).Find(words)
		if err != nil || len(rest) > 0 {
			t.Errorf("`leasehold %s`: %v, %v is left", m[1], err, rest)
			continue
		}
		for _, flag := range flags {
			if cmd.Flag(flag) == nil {
				t.Errorf("`leasehold %s`: there is no flag --%s", m[1], flag)
			}
		}
	}
}
