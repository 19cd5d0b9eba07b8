package main

import (
	_ "embed"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
)

// tourText has five lines for a POSIX shell, to be pasted as they are. Later lines need the
// token of the lease, which the second keeps in a variable without needing jq.
//
//go:embed tour.txt
var tourText string

var tourTemplate = template.Must(template.New("tour").Parse(tourText))

// tour is what a tour depends on.
type tour struct {
	GRPC, HTTP string // addresses
	Call       string // the beginning of each line, up to the options
	To         string // the address as grpcurl takes it
	Missing    bool   // there is no grpcurl on the PATH
}

// printTour prints lines that work as printed. A tour that cannot be printed is no reason
// to end the service.
func printTour(w io.Writer, grpc, http string) {
	t := newTour(grpc, http, exec.LookPath)
	if err := tourTemplate.Execute(w, t); err != nil {
		fmt.Fprintln(w, "the service is ready on", grpc)
	}
}

// usualBins are on everybody's PATH: there the bare name will do.
var usualBins = []string{"/bin", "/usr/bin", "/usr/local/bin", "/opt/homebrew/bin"}

func newTour(grpc, http string, lookPath func(string) (string, error)) tour {
	t := tour{GRPC: grpc, HTTP: http, Call: "grpcurl", To: grpc}
	path, err := lookPath("grpcurl")
	t.Missing = err != nil
	// The lines are pasted into another shell, which may have another PATH.
	if abs, absErr := filepath.Abs(path); err == nil && absErr == nil && !slices.Contains(usualBins, filepath.Dir(abs)) {
		t.Call = abs
	}
	t.Call += " -plaintext"
	if socket, is := strings.CutPrefix(grpc, "unix:"); is {
		t.Call += " -unix"
		t.To = socket
	}
	return t
}
