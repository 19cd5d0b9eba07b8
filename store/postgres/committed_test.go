package postgres_test

import (
	"bytes"
	"net/url"
	"testing"

	"github.com/leasehold/leasehold/internal/faultproxy"
	"github.com/leasehold/leasehold/store"
)

// Leases that a batch has committed reach their callers, also where the network goes before
// the look-up why others of the batch got none.
func TestR3CommittedLeasesAreAnsweredThoughALookUpFails(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.enqueue(t, store.NewJob{})
	u, err := url.Parse(h.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy, err := faultproxy.New(u.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	through, err := proxy.Through(h.URL)
	if err != nil {
		t.Fatal(err)
	}
	s := openStore(t, through)
	if _, err := s.ListQueues(t.Context(), "", 1); err != nil { // connects
		t.Fatal(err)
	}
	proxy.Refuse(true)
	cut := proxy.CutAt(faultproxy.ToServer, func(chunk []byte) bool { return bytes.Contains(chunk, []byte("q.id IS NOT NULL AS found")) })
	out, err := s.Acquire(t.Context(), []store.Acquire{
		{Queues: []string{"q"}, Owner: "worker-1", MaxJobs: 1}, {Queues: []string{"q"}, Owner: "worker-2", MaxJobs: 1},
	})
	select {
	case <-cut:
	default:
		t.Fatal("nothing was looked up: this proves nothing")
	}
	if err != nil || len(out[0].Leases)+len(out[1].Leases) != 1 {
		t.Errorf("Acquire: %+v, %v", out, err)
	}
	for _, o := range out {
		if len(o.Leases) == 0 && !is[*store.UnavailableError](o.Err) {
			t.Errorf("who got nothing is answered %+v", o)
		}
	}
}
