//go:build full

package main

import "testing"

// TestDemo is `make demo`.
func TestDemo(t *testing.T) {
	if err := run(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
}
