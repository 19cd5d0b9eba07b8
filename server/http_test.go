package server

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/leasehold/leasehold/store"
)

// good is a reading of a database in order.
var good = store.Health{SchemaVersion: 3, PartitionsAhead: 8, StampAge: time.Second, SweepAge: 20 * time.Second}

func with(change func(*store.Health)) store.Health {
	h := good
	change(&h)
	return h
}

func TestReadinessSaysWhyNot(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		health store.Health
		err    error
		want   []string // parts of the reasons, in order
	}{
		"in order":            {good, nil, nil},
		"newer schema":        {with(func(h *store.Health) { h.SchemaVersion = 4 }), nil, nil},
		"older schema":        {with(func(h *store.Health) { h.SchemaVersion = 2 }), nil, []string{"version 2 and this binary needs 3"}},
		"stamp at its bound":  {with(func(h *store.Health) { h.StampAge = 5 * time.Second }), nil, nil},
		"stamp too old":       {with(func(h *store.Health) { h.StampAge = 6 * time.Second }), nil, []string{"takes no writes: the last stamp is 6s old"}},
		"sweep at its bound":  {with(func(h *store.Health) { h.SweepAge = 100 * time.Second }), nil, nil},
		"sweep too old":       {with(func(h *store.Health) { h.SweepAge = 101 * time.Second }), nil, []string{"sweep is 1m41s old, above 1m40s"}},
		"partitions at bound": {with(func(h *store.Health) { h.PartitionsAhead = 2 }), nil, nil},
		"partitions":          {with(func(h *store.Health) { h.PartitionsAhead = 1 }), nil, []string{"only 1 partitions lie ahead"}},
		"all at once": {store.Health{StampAge: time.Hour, SweepAge: time.Hour}, nil,
			[]string{"takes no writes", "version 0", "sweep", "partitions"}},
		"away":               {store.Health{}, &store.UnavailableError{Cause: errors.New("connection refused")}, []string{"not available: connection refused"}},
		"away, nobody knows": {store.Health{}, &store.UnavailableError{}, []string{"not available"}},
	} {
		r := NewReadiness(ReadinessConfig{SchemaVersion: 3})
		got := r.observe(c.health, c.err)
		if len(got) != len(c.want) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
			continue
		}
		for i := range got {
			if !strings.Contains(got[i], c.want[i]) {
				t.Errorf("%s: got %q, want %q", name, got[i], c.want[i])
			}
		}
	}
}

// TestReadinessOutlivesABusyMoment, not an outage, and not a reading that stays away.
func TestReadinessOutlivesABusyMoment(t *testing.T) {
	t.Parallel()
	now := time.Now()
	r := NewReadiness(ReadinessConfig{})
	r.now = func() time.Time { return now }
	busy := &store.BusyError{What: "the table"}
	if got := r.observe(store.Health{}, busy); len(got) != 1 {
		t.Errorf("ready before the first reading: %q", got)
	}
	if got := r.observe(good, nil); len(got) != 0 {
		t.Errorf("not ready: %q", got)
	}
	now = now.Add(staleReading)
	if got := r.observe(store.Health{}, busy); len(got) != 0 {
		t.Errorf("a busy moment makes it unready: %q", got)
	}
	now = now.Add(time.Second)
	if got := r.observe(store.Health{}, busy); len(got) != 1 || !strings.Contains(got[0], "the table is locked") {
		t.Errorf("no reading for 6 s: %q", got)
	}
	if got := r.observe(good, nil); len(got) != 0 {
		t.Errorf("not ready again: %q", got)
	}
	// A check that hangs must not keep an old answer alive.
	now = now.Add(staleReading + time.Second)
	if got := r.Reasons(); len(got) != 1 {
		t.Errorf("ready without a reading: %q", got)
	}
}

func TestDrainIsForGood(t *testing.T) {
	t.Parallel()
	r := NewReadiness(ReadinessConfig{})
	r.Waiting("waiting for the database")
	if got := r.Reasons(); len(got) != 1 || got[0] != "waiting for the database" {
		t.Errorf("got %q", got)
	}
	r.Drain()
	if got := r.observe(good, nil); len(got) != 1 || !strings.Contains(got[0], "draining") {
		t.Errorf("got %q", got)
	}
	select {
	case <-r.Ready():
		t.Error("a replica that drains was announced as ready")
	default:
	}
}

func page(t *testing.T, h http.Handler, method, path string) (status int, body string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, path, http.NoBody))
	text, err := io.ReadAll(w.Result().Body)
	if err != nil {
		t.Fatal(err)
	}
	return w.Code, string(text)
}

func TestHTTP(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	count := prometheus.NewCounter(prometheus.CounterOpts{Name: "leasehold_test_total", Help: "For a test."})
	registry.MustRegister(count)
	r := NewReadiness(ReadinessConfig{SchemaVersion: 3})
	h := NewHTTPServer(r, registry, silent).Handler
	for _, step := range []struct {
		health store.Health
		status int
		body   string
	}{
		{with(func(h *store.Health) { h.SchemaVersion, h.PartitionsAhead = 1, 0 }), 503,
			"the schema is at version 1 and this binary needs 3\nonly 0 partitions lie ahead, below 2\n"},
		{good, 200, "ready\n"},
	} {
		r.observe(step.health, nil)
		if status, body := page(t, h, http.MethodGet, "/readyz"); status != step.status || body != step.body {
			t.Errorf("/readyz: %d %q, want %d %q", status, body, step.status, step.body)
		}
		if status, body := page(t, h, http.MethodGet, "/healthz"); status != 200 || body != "alive\n" {
			t.Errorf("/healthz: %d %q", status, body)
		}
	}
	if status, body := page(t, h, http.MethodGet, "/metrics"); status != 200 || !strings.Contains(body, "leasehold_test_total 0") {
		t.Errorf("/metrics: %d %q", status, body)
	}
	for path, want := range map[string]int{"/": 404, "/readyz/x": 404} {
		if status, _ := page(t, h, http.MethodGet, path); status != want {
			t.Errorf("%s: %d, want %d", path, status, want)
		}
	}
	if status, _ := page(t, h, http.MethodPost, "/readyz"); status != 405 {
		t.Errorf("POST: %d", status)
	}
}
