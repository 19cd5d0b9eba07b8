package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// readyFile tells scripts that the service is ready, and where. The zero value is no file.
type readyFile struct{ path string }

// possible finds a folder that is missing at the start, not when the service is ready.
func (f readyFile) possible() error {
	if f.path == "" {
		return nil
	}
	info, err := os.Stat(filepath.Dir(f.path))
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is no folder", filepath.Dir(f.path))
	}
	return err
}

// write makes the file in one step: a reader sees all of it or nothing.
func (f readyFile) write(grpc, http string) error {
	if f.path == "" {
		return nil
	}
	half, err := os.CreateTemp(filepath.Dir(f.path), "."+filepath.Base(f.path)+".*")
	if err != nil {
		return fmt.Errorf("--ready-file: %w", err)
	}
	_, err = fmt.Fprintf(half, "grpc=%s\nhttp=%s\n", grpc, http)
	err = errors.Join(err, half.Chmod(0o644), half.Close())
	if err == nil {
		err = os.Rename(half.Name(), f.path)
	}
	if err != nil {
		return fmt.Errorf("--ready-file: %w", errors.Join(err, os.Remove(half.Name())))
	}
	return nil
}

// remove takes the file away, also the one that a killed predecessor left behind.
func (f readyFile) remove() error {
	if f.path == "" {
		return nil
	}
	if err := os.Remove(f.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("--ready-file: %w", err)
	}
	return nil
}
