//go:build race

package main

// The command under test looks for races where its tests do: start and shutdown are the
// places where goroutines meet. A race makes it exit with 66.
func init() { buildFlags = append(buildFlags, "-race") }
