package servertest

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/leasehold/leasehold/internal/sidecar"
	"github.com/leasehold/leasehold/server/servertest/remote"
	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/storetest"
)

// sidecarBefore starts a sidecar before a replica and connects to its socket. served tells that
// it has ended.
func sidecarBefore(t testing.TB, up grpc.ClientConnInterface, gauges *prometheus.Registry) (s *sidecar.Sidecar, conn *grpc.ClientConn, served <-chan error) {
	t.Helper()
	s, err := sidecar.New(sidecar.Config{Polls: up, Beats: up, Calls: up, Log: slog.New(slog.DiscardHandler), Registry: gauges})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "s") // the path of a socket is short
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	conn, err = grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	return s, conn, ended
}

// besideSidecar is sidecarBefore until the end of the test.
func besideSidecar(t testing.TB, up grpc.ClientConnInterface, gauges *prometheus.Registry) *grpc.ClientConn {
	t.Helper()
	s, conn, served := sidecarBefore(t, up, gauges)
	t.Cleanup(func() {
		conn.Close()
		ctx, cancel := context.WithTimeout(context.Background(), drainPatience)
		defer cancel()
		s.Drain(ctx)
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return conn
}

// sidecarHarness is the suite's harness whose clients talk to a sidecar.
type sidecarHarness struct {
	*database
	store store.Store
}

// Store is storetest.Harness.Store.
func (h *sidecarHarness) Store() store.Store { return h.store }

// Replica is storetest.Harness.Replica.
func (h *sidecarHarness) Replica(t testing.TB) store.Store { return h.newStore(t) }

func (h *sidecarHarness) newStore(t testing.TB) *remote.Store {
	t.Helper()
	st := openStore(t, h.URL)
	r, err := remote.New(t.Context(), besideSidecar(t, serve(t, st, withoutEarlySweep{st}).conn, prometheus.NewRegistry()), st)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func newSidecarHarness(t *testing.T) storetest.Harness {
	h := &sidecarHarness{database: newDatabase(t)}
	h.store = h.newStore(t)
	return h
}

// TestContractBesideASidecar: whatever a client does, a sidecar between it and the service
// changes neither an answer nor an error.
func TestContractBesideASidecar(t *testing.T) {
	t.Parallel()
	storetest.Run(t, newSidecarHarness)
}

// TestRandomSequencesBesideASidecar runs random calls through a sidecar against the pure model.
func TestRandomSequencesBesideASidecar(t *testing.T) {
	t.Parallel()
	storetest.RunRandom(t, newSidecarHarness)
}
