package main

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// narrator tells what happens, with the time since the start.
type narrator struct {
	mu    sync.Mutex
	w     io.Writer
	began time.Time
}

func newNarrator(w io.Writer) *narrator { return &narrator{w: w, began: time.Now()} }

func (n *narrator) say(who, format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	// Whoever does not listen does not stop the demo.
	_, _ = fmt.Fprintf(n.w, "%6.1fs  %-9s %s\n", time.Since(n.began).Seconds(), who, fmt.Sprintf(format, args...))
}

// loud is for the moments that the demo is about.
func (n *narrator) loud(who, format string, args ...any) {
	n.say(who, "*** "+format, args...)
}
