//go:build full

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/leasehold/leasehold/internal/doctest"
)

// TestContractGuideIsTrue pastes the guide into a shell, from top to bottom, and holds the
// answers of a service against those that the guide shows.
func TestContractGuideIsTrue(t *testing.T) {
	t.Parallel()
	p := beginService(t, "dev", "--ephemeral")
	grpcAddress, _ := p.addresses(t)
	examples := doctest.Read(t, contractGuide).Examples("sh")
	dir := t.TempDir()
	var script strings.Builder
	for i, e := range examples {
		text := strings.ReplaceAll(e.Text, "127.0.0.1:7070", grpcAddress)
		fmt.Fprintf(&script, "{\n%s} >%s/%d.out 2>&1\necho $? >%s/%d.code\n", text, dir, i, dir, i)
	}
	cmd := exec.CommandContext(t.Context(), "sh")
	cmd.Env = append(os.Environ(), "PATH="+pathWithGrpcurl(t))
	cmd.Stdin = strings.NewReader(script.String())
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	for i, e := range examples {
		output, code := readFile(t, dir, fmt.Sprint(i, ".out")), strings.TrimSpace(readFile(t, dir, fmt.Sprint(i, ".code")))
		refused := e.Answer != nil && e.Answer.Lang == "text"
		if (code != "0") != refused {
			t.Errorf("%s:%d: exit code %s, with the answer\n%s", contractGuide, e.Line, code, output)
		}
		if e.Answer == nil {
			continue
		}
		if err := e.Answer.Check(output); err != nil {
			t.Errorf("%s:%d: %v, in the answer\n%s", contractGuide, e.Answer.Line, err, output)
		}
	}
}

// pathWithGrpcurl is the PATH, with the folder to which make puts its tools.
func pathWithGrpcurl(t *testing.T) string {
	t.Helper()
	path := filepath.Join(doctest.Root(t), ".tools", "bin") + string(os.PathListSeparator) + os.Getenv("PATH")
	for _, dir := range filepath.SplitList(path) {
		if _, err := exec.LookPath(filepath.Join(dir, "grpcurl")); err == nil {
			return path
		}
	}
	t.Fatal("there is no grpcurl: make run fetches it, or go install github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.4")
	return ""
}
