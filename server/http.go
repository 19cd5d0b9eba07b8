package server

import (
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// scrapesAtOnce bounds the scrapes that are answered at a time; more get 503.
const scrapesAtOnce = 8

// NewHTTPServer answers what operators ask of a replica:
//
//	/healthz  200 while the process works. It never asks the database: an orchestrator that
//	          restarts every replica because the database is away makes an outage longer.
//	/readyz   200, or 503 with the reasons, one a line.
//	/metrics  in the Prometheus text format.
//
// It is served apart from gRPC, so that it answers while the replica waits for its database
// and while it drains.
func NewHTTPServer(ready *Readiness, metrics prometheus.Gatherer, log *slog.Logger) *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		answerText(w, http.StatusOK, "alive")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if reasons := ready.Reasons(); len(reasons) > 0 {
			answerText(w, http.StatusServiceUnavailable, strings.Join(reasons, "\n"))
			return
		}
		answerText(w, http.StatusOK, "ready")
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{
		// A scrape that breaks off is reported once for each metric that is left.
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		// One collector that fails must not hide the others.
		ErrorHandling: promhttp.ContinueOnError,
		// Each scrape holds a copy of all series: whoever asks faster than it is answered waits
		// for nothing but memory.
		MaxRequestsInFlight: scrapesAtOnce,
	}))
	return &http.Server{
		Handler: mux,
		// A client that never finishes its request must not hold a connection for ever.
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

func answerText(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = fmt.Fprintln(w, text) // whoever asked may be gone
}
