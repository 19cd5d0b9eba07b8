package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// bankClient is how a worker talks to the bank.
type bankClient struct {
	url  string
	http http.Client
}

func newBankClient(url string) *bankClient {
	return &bankClient{url: url, http: http.Client{Timeout: 5 * time.Second}}
}

// authorize asks for an authorisation. Each call that succeeds reserves money.
func (c *bankClient) authorize(ctx context.Context, p payment) (string, error) {
	var got struct{ Auth string }
	err := c.call(ctx, http.MethodPost, "/authorize", p, &got)
	return got.Auth, err
}

// refusedError says why the ledger did not take a posting.
type refusedError struct{ why string }

func (e *refusedError) Error() string { return "the ledger refused: " + e.why }

// post writes into the ledger. It fails with *refusedError where the ledger does not want it.
func (c *bankClient) post(ctx context.Context, p posting) (string, error) {
	var got struct{ Receipt string }
	err := c.call(ctx, http.MethodPost, "/ledger", p, &got)
	return got.Receipt, err
}

func (c *bankClient) statement(ctx context.Context, paymentID string) (payment, error) {
	var got payment
	err := c.call(ctx, http.MethodGet, "/statement/"+paymentID, nil, &got)
	return got, err
}

func (c *bankClient) call(ctx context.Context, method, path string, send, got any) error {
	body, err := json.Marshal(send)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		return json.NewDecoder(resp.Body).Decode(got)
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1000))
	if err != nil {
		return err
	}
	said := strings.TrimSpace(string(text))
	if resp.StatusCode == http.StatusConflict {
		return &refusedError{why: said}
	}
	return fmt.Errorf("%s: %s", resp.Status, said)
}
