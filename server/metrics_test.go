package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
)

// series are all values that a registry has, by name and labels as in `name{label="value"}`;
// of a histogram its count.
func series(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			name := f.GetName()
			if len(labels) > 0 {
				name += "{" + strings.Join(labels, ",") + "}"
			}
			out[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return out
}

// statisticsStore counts what the statistics ask for.
type statisticsStore struct {
	*hookedStore
	pages [][]string
	stats func(names []string) error
	facts *store.LintFacts
}

func (s *statisticsStore) QueueStats(ctx context.Context, names []string) ([]store.QueueStats, error) {
	s.pages = append(s.pages, names)
	if s.stats != nil {
		if err := s.stats(names); err != nil {
			return nil, err
		}
	}
	return s.hookedStore.QueueStats(ctx, names)
}

func (s *statisticsStore) LintFacts(ctx context.Context, q store.LintQuery) (*store.LintFacts, error) {
	if s.facts != nil {
		return s.facts, nil
	}
	return s.hookedStore.LintFacts(ctx, q)
}

func measured(t *testing.T, queues ...string) (*statistics, *statisticsStore, *prometheus.Registry, *LeaseMetrics) {
	t.Helper()
	registry := prometheus.NewRegistry()
	leases, err := NewLeaseMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	st := &statisticsStore{hookedStore: newStore(t, queues...)}
	s, err := newStatistics(st, BackgroundConfig{Registry: registry, Leases: leases})
	if err != nil {
		t.Fatal(err)
	}
	return s, st, registry, leases
}

func TestStatisticsOfJobs(t *testing.T) {
	t.Parallel()
	s, st, registry, leases := measured(t, "a", "b", "empty")
	hour := time.Hour
	if _, err := st.Enqueue(t.Context(), []store.NewJob{{Queue: "a"}, {Queue: "a"}, {Queue: "a", Delay: &hour}, {Queue: "b"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := st.Acquire(t.Context(), []store.Acquire{{Queues: []string{"b"}, Owner: "w/1", MaxJobs: 1}}); err != nil {
		t.Fatal(err)
	}
	if _, err := st.PauseQueue(t.Context(), "b", store.Actor{Name: "ann"}); err != nil {
		t.Fatal(err)
	}
	if err := s.countJobs(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := series(t, registry)
	for name, want := range map[string]float64{
		`leasehold_database_jobs{queue="a",state="ready"}`:           2,
		`leasehold_database_jobs{queue="a",state="scheduled"}`:       1,
		`leasehold_database_jobs{queue="b",state="processing"}`:      1,
		`leasehold_database_jobs{queue="empty",state="dead"}`:        0,
		`leasehold_database_queue_paused{queue="b"}`:                 1,
		`leasehold_database_queue_paused{queue="a"}`:                 0,
		`leasehold_database_oldest_ready_job_age_seconds{queue="b"}`: 0,
		`leasehold_database_queues_left_out`:                         0,
	} {
		if value, ok := got[name]; !ok || value != want {
			t.Errorf("%s is %v (%v), want %v", name, value, ok, want)
		}
	}

	leases.Leased("empty", time.Second)
	if err := st.DeleteQueue(t.Context(), "empty"); err != nil {
		t.Fatal(err)
	}
	if err := s.countJobs(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name := range series(t, registry) {
		if strings.Contains(name, `"empty"`) {
			t.Errorf("the queue is deleted, and there is %s", name)
		}
	}
}

// TestStatisticsPassOverAPageThatFails, and come to the end all the same.
func TestStatisticsPassOverAPageThatFails(t *testing.T) {
	t.Parallel()
	s, st, registry, _ := measured(t, "a", "b", "c")
	s.pageSize = 1
	st.stats = func(names []string) error {
		if names[0] == "b" {
			return errors.New("too many")
		}
		return nil
	}
	if err := s.countJobs(t.Context()); err == nil {
		t.Error("nobody hears of the page that failed")
	}
	if err := s.countJobs(t.Context()); err != nil {
		t.Error(err)
	}
	got := series(t, registry)
	if _, ok := got[`leasehold_database_jobs{queue="c",state="ready"}`]; !ok {
		t.Error("the queue behind is not counted")
	}
	if _, ok := got[`leasehold_database_jobs{queue="b",state="ready"}`]; ok {
		t.Error("a queue that could not be counted has a number")
	}
}

// TestStatisticsTakeAShareOfTheTime: a pass ends after the page that used it up, and the next
// goes on behind it.
func TestStatisticsTakeAShareOfTheTime(t *testing.T) {
	t.Parallel()
	s, st, _, _ := measured(t, "a", "b", "c")
	s.pageSize = 1
	clock := time.Unix(0, 0)
	s.now = func() time.Time { return clock }
	st.stats = func([]string) error { clock = clock.Add(statisticsBudget); return nil }
	for _, want := range []string{"a", "b", "c", "a"} {
		st.pages = nil
		if err := s.countJobs(t.Context()); err != nil {
			t.Fatal(err)
		}
		if len(st.pages) != 1 || st.pages[0][0] != want {
			t.Errorf("a pass asked for %v, want %s", st.pages, want)
		}
	}
}

func TestStatisticsHaveABoundOfQueues(t *testing.T) {
	t.Parallel()
	s, _, registry, _ := measured(t, "a", "b", "c", "d")
	s.pageSize, s.maxQueues = 2, 3
	for range 2 {
		if err := s.countJobs(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := series(t, registry)
		_, third := got[`leasehold_database_queue_paused{queue="c"}`]
		_, fourth := got[`leasehold_database_queue_paused{queue="d"}`]
		if !third || fourth || got["leasehold_database_queues_left_out"] != 1 {
			t.Errorf("third %v, fourth %v, left out %v", third, fourth, got["leasehold_database_queues_left_out"])
		}
	}
}

func TestStatisticsOfLeases(t *testing.T) {
	t.Parallel()
	s, st, registry, _ := measured(t)
	st.facts = &store.LintFacts{Overdue: 4, Queues: []store.QueueLeases{
		{Queue: "a", Leases: 9, ByTime: 2, DoubleRuns: 1, GapShareP99: 0.75, GapMax: 3 * time.Second}, {Queue: "b"},
	}}
	if err := s.sampleLeases(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := series(t, registry)
	for name, want := range map[string]float64{
		`leasehold_database_recent_leases{queue="a"}`:                    9,
		`leasehold_database_recent_leases_ended_by_time{queue="a"}`:      2,
		`leasehold_database_recent_double_runs{queue="a"}`:               1,
		`leasehold_database_recent_heartbeat_gap_ratio{queue="a"}`:       0.75,
		`leasehold_database_recent_heartbeat_gap_max_seconds{queue="a"}`: 3,
		`leasehold_database_overdue_leases`:                              4,
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
	st.facts = &store.LintFacts{Queues: []store.QueueLeases{{Queue: "b"}}}
	if err := s.sampleLeases(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, ok := series(t, registry)[`leasehold_database_recent_leases{queue="a"}`]; ok {
		t.Error("a queue that is gone has figures")
	}
}

// TestQueueLabelsAreBounded: ten thousand queues make a thousand and one labels.
func TestQueueLabelsAreBounded(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	m, err := NewLeaseMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 * maxQueueLabels {
		m.Leased(fmt.Sprintf("q%d", i), time.Second)
		m.Ended(fmt.Sprintf("q%d", i), store.EndExpired, time.Second)
	}
	got := series(t, registry)
	if want := (maxQueueLabels+1)*(2+len(store.Ends)) + 2; len(got) != want {
		t.Errorf("%d series, want %d", len(got), want)
	}
	for _, name := range []string{`leasehold_job_wait_seconds{queue="(other)"}`, `leasehold_leases_ended_total{outcome="expired",queue="(other)"}`} {
		if got[name] != 9*maxQueueLabels {
			t.Errorf("%s is %v", name, got[name])
		}
	}
}

func TestMergingIsMeasured(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	s := serve(t, newStore(t, "q"), Config{Registry: registry})
	s.enqueueOne(t, &pb.EnqueueRequest{Queue: "q"})
	s.acquireOne(t, "q")
	got := series(t, registry)
	for _, name := range []string{
		`leasehold_merge_size{call="Enqueue"}`, `leasehold_merge_wait_seconds{call="Enqueue"}`, `leasehold_merge_size{call="AcquireLease"}`,
	} {
		if got[name] != 1 {
			t.Errorf("%s is %v", name, got[name])
		}
	}
}

// TestScrapesAskTheDatabaseNothing: they find what the loops read last.
func TestScrapesAskTheDatabaseNothing(t *testing.T) {
	t.Parallel()
	s, st, registry, _ := measured(t, "a")
	if err := s.countJobs(t.Context()); err != nil {
		t.Fatal(err)
	}
	h := NewHTTPServer(NewReadiness(ReadinessConfig{}), registry, silent).Handler
	for range 3 {
		if code, body := page(t, h, http.MethodGet, "/metrics"); code != http.StatusOK || !strings.Contains(body, `leasehold_database_jobs{queue="a",state="ready"} 0`) {
			t.Fatalf("%d %.300s", code, body)
		}
	}
	if len(st.pages) != 1 {
		t.Errorf("the queues were counted %d times", len(st.pages))
	}
}
