package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"
)

// bank stands for the world outside: a payment provider that authorises, and a ledger into
// which each payment must go once. It keeps everything that it was asked, because the demo
// is judged by it.
type bank struct {
	url    string
	server *http.Server

	mu       sync.Mutex
	outages  map[string]int    // by payment: how often the provider is still away
	owed     map[string]int    // by payment: what is to be settled
	auths    map[string]int    // by payment: authorisations given
	fences   map[string]int64  // by job: the largest lease_no that wrote
	postings []posting         // the ledger
	refused  map[string]string // by payment: why a posting was refused, the last
}

// posting is one line of the ledger, and the request for one.
type posting struct {
	Payment string `json:"payment"`
	Amount  int    `json:"amount"`
	Auth    string `json:"auth"`
	JobID   string `json:"job_id"`
	// LeaseNo is the fencing number: a writer whose lease was superseded has a smaller one.
	LeaseNo int64  `json:"lease_no"`
	Owner   string `json:"owner"`
}

func openBank() (*bank, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	b := &bank{
		url:     "http://" + l.Addr().String(),
		outages: map[string]int{}, owed: map[string]int{}, auths: map[string]int{},
		fences: map[string]int64{}, refused: map[string]string{},
	}
	for _, s := range scenarios() {
		b.outages[s.ID], b.owed[s.ID] = s.outages, s.Amount
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /authorize", b.authorize)
	mux.HandleFunc("POST /ledger", b.post)
	mux.HandleFunc("GET /statement/{payment}", b.statement)
	b.server = &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = b.server.Serve(l) }() // ends by close, with an error that says so
	return b, nil
}

func (b *bank) close() { _ = b.server.Close() }

// authorize gives an authorisation each time it is asked: asking twice reserves the money
// twice. That is why a worker keeps the answer in its checkpoint.
func (b *bank) authorize(w http.ResponseWriter, r *http.Request) {
	var p payment
	if err := json.NewDecoder(r.Body).Decode(&p); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.outages[p.ID] > 0 {
		b.outages[p.ID]--
		http.Error(w, "the provider is away", http.StatusServiceUnavailable)
		return
	}
	b.auths[p.ID]++
	reply(w, map[string]string{"auth": fmt.Sprintf("A-%s-%d", p.ID, b.auths[p.ID])})
}

// post writes into the ledger, unless the writer's lease was superseded by one that has
// written (its number is smaller) or the payment is settled.
func (b *bank) post(w http.ResponseWriter, r *http.Request) {
	var p posting
	if err := json.NewDecoder(r.Body).Decode(&p); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if newest := b.fences[p.JobID]; p.LeaseNo < newest {
		b.refuse(w, p, fmt.Sprintf("lease %d has written, lease %d comes too late", newest, p.LeaseNo))
		return
	}
	b.fences[p.JobID] = p.LeaseNo
	for _, done := range b.postings {
		if done.Payment == p.Payment {
			b.refuse(w, p, "it is settled already")
			return
		}
	}
	b.postings = append(b.postings, p)
	reply(w, map[string]string{"receipt": fmt.Sprintf("R-%03d", len(b.postings))})
}

func (b *bank) refuse(w http.ResponseWriter, p posting, why string) {
	b.refused[p.Payment] = why
	http.Error(w, why, http.StatusConflict)
}

// statement says what is owed, for whoever settles by hand.
func (b *bank) statement(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	id := r.PathValue("payment")
	amount, known := b.owed[id]
	if !known {
		http.NotFound(w, r)
		return
	}
	reply(w, payment{ID: id, Amount: amount})
}

func reply(w http.ResponseWriter, answer any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // whoever asked may be gone
}

// settled is what the ledger has of one payment.
type settled struct {
	postings []posting
	auths    int
	refused  string
}

func (b *bank) of(paymentID string) settled {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := settled{auths: b.auths[paymentID], refused: b.refused[paymentID]}
	for _, p := range b.postings {
		if p.Payment == paymentID {
			s.postings = append(s.postings, p)
		}
	}
	return s
}

func (b *bank) total() (postings, cents int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.postings {
		cents += p.Amount
	}
	return len(b.postings), cents
}
