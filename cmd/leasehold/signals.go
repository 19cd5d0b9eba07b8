package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
)

// untilSignal returns a context that ends with SIGINT or SIGTERM, and begins an orderly
// shutdown by that. The second signal ends the process at once: whoever sends it will not
// wait for a drain that hangs. stop ends the listening for signals.
func untilSignal(parent context.Context, log *slog.Logger) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancel(parent)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	done := make(chan struct{})
	go func() {
		for n := 1; ; n++ {
			select {
			case s := <-signals:
				if n > 1 {
					log.Warn("second signal: ending at once", "signal", s.String())
					os.Exit(exitFailed)
				}
				log.Info("shutting down; a second signal ends at once", "signal", s.String())
				cancel()
			case <-done:
				return
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(done)
		cancel()
	}
}
