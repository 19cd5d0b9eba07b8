package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// address is where to listen: network "tcp" with host:port, or "unix" with a path.
type address struct{ network, at string }

// parseAddress reads host:port or unix:PATH (gRPC's unix:///PATH as well).
func parseAddress(text string) (address, error) {
	if path, is := strings.CutPrefix(text, "unix:"); is {
		path = strings.TrimPrefix(path, "//")
		switch {
		case path == "":
			return address{}, errors.New("unix: needs a path")
		case len(path) > maxSocketPath:
			return address{}, fmt.Errorf("the path of a unix socket has at most %d bytes, got %d", maxSocketPath, len(path))
		}
		return address{network: "unix", at: path}, nil
	}
	_, port, err := net.SplitHostPort(text)
	if err != nil {
		return address{}, fmt.Errorf("must be host:port or unix:PATH, got %q", text)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return address{}, fmt.Errorf("the port must be 0..65535, got %q", port)
	}
	return address{network: "tcp", at: text}, nil
}

// listen opens a listener on host:port or unix:PATH.
func listen(ctx context.Context, text string) (net.Listener, error) {
	a, err := parseAddress(text)
	if err != nil {
		return nil, err
	}
	if a.network == "unix" {
		if err := clearSocket(ctx, a.at); err != nil {
			return nil, err
		}
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, a.network, a.at)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", text, err)
	}
	return l, nil
}

// clearSocket removes the socket that a killed predecessor left behind, which would make
// every later start fail. A socket that answers, and any other file, stays.
func clearSocket(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeSocket == 0 {
		return fmt.Errorf("listen on unix:%s: there is a file that is no socket", path)
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err == nil {
		return errors.Join(fmt.Errorf("listen on unix:%s: another process serves there", path), conn.Close())
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("listen on unix:%s: %w", path, err)
	}
	return os.Remove(path)
}

// actualAddress is where a listener is reached: host:port with the port that was chosen, or
// unix:PATH with an absolute path.
func actualAddress(l net.Listener) string {
	at := l.Addr().String()
	if l.Addr().Network() != "unix" {
		return at
	}
	if abs, err := filepath.Abs(at); err == nil {
		at = abs
	}
	return "unix:" + at
}
