package main

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestParseAddress(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]address{
		"127.0.0.1:7070":  {"tcp", "127.0.0.1:7070"},
		":0":              {"tcp", ":0"},
		"[::1]:1":         {"tcp", "[::1]:1"},
		"unix:/a/b":       {"unix", "/a/b"},
		"unix:///a/b":     {"unix", "/a/b"},
		"unix:relative/b": {"unix", "relative/b"},
	} {
		if got, err := parseAddress(text); err != nil || got != want {
			t.Errorf("%s: got %v, %v", text, got, err)
		}
	}
}

func TestActualAddressHasThePortThatWasChosen(t *testing.T) {
	t.Parallel()
	l, err := listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	got := actualAddress(l)
	conn, err := net.Dial("tcp", got)
	if err != nil || strings.HasSuffix(got, ":0") {
		t.Fatalf("%s: %v", got, err)
	}
	conn.Close()
}

// TestSocketOfAKilledPredecessor must not make every later start fail.
func TestSocketOfAKilledPredecessor(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	first, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := listen(t.Context(), "unix:"+path); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("a socket that answers: %v", err)
	}
	first.SetUnlinkOnClose(false)
	first.Close()
	second, err := listen(t.Context(), "unix:"+path)
	if err != nil {
		t.Fatal(err)
	}
	if got := actualAddress(second); got != "unix:"+path {
		t.Errorf("the address is %q", got)
	}
	second.Close()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is left behind: %v", err)
	}
}

func TestFileThatIsNoSocketStays(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "precious")
	if err := os.WriteFile(path, []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := listen(t.Context(), "unix:"+path); err == nil || !strings.Contains(err.Error(), "no socket") {
		t.Errorf("got %v", err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "data" {
		t.Errorf("the file is now %q, %v", text, err)
	}
}

func TestReadyFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f := readyFile{filepath.Join(dir, "ready")}
	if err := f.write("a:1", "b:2"); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(f.path); err != nil || string(text) != "grpc=a:1\nhttp=b:2\n" {
		t.Errorf("got %q, %v", text, err)
	}
	if err := errors.Join(f.remove(), f.remove()); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if err := (readyFile{filepath.Join(dir, "no", "such", "folder")}).write("a", "b"); err == nil {
		t.Error("written into a folder that is not there")
	}
	none := readyFile{}
	if err := errors.Join(none.write("a", "b"), none.remove()); err != nil {
		t.Error(err)
	}
}
