package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"sort"
	"strconv"
	"time"
)

const (
	pageTimeout = 10 * time.Second
	pageMost    = 50
)

// provider is the client of the payment provider.
type provider struct {
	url  string
	http http.Client
}

// page is the next payments behind one, at most limit and what the provider gives at once.
func (p *provider) page(ctx context.Context, after string, limit int) ([]payment, error) {
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()
	query := url.Values{"after": {after}, "limit": {strconv.Itoa(limit)}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+"/payments?"+query.Encode(), http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := p.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the provider answers %s", resp.Status)
	}
	var page []payment
	return page, json.NewDecoder(resp.Body).Decode(&page)
}

// fakeProvider stands for a payment provider: an HTTP server that lists its payments.
type fakeProvider struct {
	list []payment // by id
	// asked hears of each page that is asked for. Default: nobody.
	asked func(after string)
}

// newFakeProvider has n payments; of every fifth it says that it failed.
func newFakeProvider(n int) *fakeProvider {
	f := &fakeProvider{asked: func(string) {}}
	for i := range n {
		status := "succeeded"
		if i%5 == 4 {
			status = "failed"
		}
		f.list = append(f.list, payment{ID: fmt.Sprintf("pay-%06d", i+1), Amount: int64(100 + i), Status: status})
	}
	return f
}

// ServeHTTP answers a page.
func (f *fakeProvider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	after := r.FormValue("after")
	limit, err := strconv.Atoi(r.FormValue("limit"))
	if err != nil || limit < 1 || r.URL.Path != "/payments" {
		http.Error(w, "GET /payments?after=ID&limit=1…", http.StatusBadRequest)
		return
	}
	f.asked(after)
	first := sort.Search(len(f.list), func(i int) bool { return f.list[i].ID > after })
	page := f.list[first:]
	page = page[:min(limit, pageMost, len(page))]
	if page == nil {
		page = []payment{}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(page) // whoever asked may have gone
}
