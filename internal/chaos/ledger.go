package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/leasehold/leasehold/store"
)

// ledger is a system that the work changes, as a bank's. It refuses what comes from a lease
// that is older than the newest it has seen of that job, as every such system should.
type ledger struct {
	server *http.Server
	url    string

	mu      sync.Mutex
	effects map[store.JobID][]int64 // the leases whose effects it took, in their order
	fenced  int
}

func openLedger() (*ledger, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &ledger{url: "http://" + listener.Addr().String(), effects: map[store.JobID][]int64{}}
	l.server = &http.Server{Handler: l, ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = l.server.Serve(listener) }() // until close
	return l, nil
}

func (l *ledger) close() { _ = l.server.Close() } // nobody is left to be answered

// ServeHTTP takes one effect.
func (l *ledger) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	job, err := strconv.ParseInt(r.FormValue("job"), 10, 64)
	no, err2 := strconv.ParseInt(r.FormValue("lease_no"), 10, 64)
	if err != nil || err2 != nil {
		http.Error(w, "job and lease_no must be numbers", http.StatusBadRequest)
		return
	}
	if !l.take(store.JobID(job), no) {
		http.Error(w, "fenced", http.StatusConflict)
	}
}

func (l *ledger) take(job store.JobID, no int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	of := l.effects[job]
	if len(of) > 0 && of[len(of)-1] > no {
		l.fenced++
		return false
	}
	l.effects[job] = append(of, no)
	return true
}

// book is what a worker does to the ledger.
func book(ctx context.Context, ledgerURL, job string, no int64) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	form := url.Values{"job": {job}, "lease_no": {strconv.FormatInt(no, 10)}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, ledgerURL+"?"+form.Encode(), nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
		return nil
	case http.StatusConflict:
		return errFenced
	}
	return fmt.Errorf("the ledger answers %s", resp.Status)
}
