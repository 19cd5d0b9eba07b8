package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/leasehold/leasehold/internal/doctest"
	"github.com/leasehold/leasehold/server"
	"github.com/leasehold/leasehold/store/storetest"
)

const metricsGuide = "docs/observability.md"

// metric is one metric of the service, as it describes itself.
type metric struct {
	name, help string
	labels     []string
}

func (m metric) row() string {
	labels := "–"
	if len(m.labels) > 0 {
		labels = "`" + strings.Join(m.labels, "`, `") + "`"
	}
	return "| `" + m.name + "` | " + labels + " | " + m.help + " |"
}

// describer is a Registerer that keeps what collectors say of themselves. A registry would
// show only metrics that have a value already.
type describer struct {
	prometheus.Registerer
	metrics []metric
}

var described = regexp.MustCompile(`^Desc\{fqName: "([^"]*)", help: ("(?:[^"\\]|\\.)*"), unit: "[^"]*", constLabels: \{\}, variableLabels: \{([^}]*)\}\}$`)

func (d *describer) Register(c prometheus.Collector) error {
	descs := make(chan *prometheus.Desc, 100)
	c.Describe(descs)
	close(descs)
	for desc := range descs {
		parts := described.FindStringSubmatch(desc.String())
		if parts == nil {
			return strconv.ErrSyntax
		}
		help, err := strconv.Unquote(parts[2])
		if err != nil {
			return err
		}
		m := metric{name: parts[1], help: help}
		if parts[3] != "" {
			m.labels = strings.Split(parts[3], ",")
		}
		d.metrics = append(d.metrics, m)
	}
	return d.Registerer.Register(c)
}

// metricsOfService are all metrics of a replica but those of the Go runtime and the process,
// sorted by name.
func metricsOfService(t *testing.T) []metric {
	t.Helper()
	d := &describer{Registerer: prometheus.NewRegistry()}
	silent := slog.New(slog.DiscardHandler)
	leases, err := server.NewLeaseMetrics(d)
	if err != nil {
		t.Fatal(err)
	}
	srv, err := server.New(t.Context(), storetest.NewMemory(nil), server.Config{Log: silent, Registry: d})
	if err != nil {
		t.Fatal(err)
	}
	_, err = server.NewBackground(srv, server.NewReadiness(server.ReadinessConfig{}), server.BackgroundConfig{Log: silent, Registry: d, Leases: leases})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Register(newPoolMetrics(nil)); err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(d.metrics, func(a, b metric) int { return strings.Compare(a.name, b.name) })
	return d.metrics
}

// TestMetricsAreInTheGuide, each with its labels and its help, and no other.
func TestMetricsAreInTheGuide(t *testing.T) {
	t.Parallel()
	var want []string
	for _, m := range metricsOfService(t) {
		want = append(want, m.row())
	}
	if len(want) < 30 {
		t.Fatalf("only %d metrics were found", len(want))
	}
	path := filepath.Join(doctest.Root(t), metricsGuide)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, _ := strings.Cut(string(text), "| --- | --- | --- |\n")
	table, after, _ := strings.Cut(rest, "\n\n")
	if os.Getenv(recordSessions) != "" {
		made := before + "| --- | --- | --- |\n" + strings.Join(want, "\n") + "\n\n" + after
		if err := os.WriteFile(path, []byte(made), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	got := strings.Split(table, "\n")
	for _, row := range want {
		if !slices.Contains(got, row) {
			t.Errorf("%s lacks the row (%s=1 writes the table anew)\n%s", metricsGuide, recordSessions, row)
		}
	}
	for _, row := range got {
		if !slices.Contains(want, row) {
			t.Errorf("%s has a row of no metric: %s", metricsGuide, row)
		}
	}
}

// TestFiguresOfTheDatabaseAreMarked: who adds up three replicas must have been warned.
func TestFiguresOfTheDatabaseAreMarked(t *testing.T) {
	t.Parallel()
	for _, m := range metricsOfService(t) {
		prefixed := strings.HasPrefix(m.name, "leasehold_database_")
		warned := strings.Contains(m.help, "Of the database: aggregate with m")
		if prefixed && !warned {
			t.Errorf("%s does not say that its sum over replicas is wrong", m.name)
		}
	}
}
