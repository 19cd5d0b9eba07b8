package client

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// RunUntilSignal is w.Run until SIGTERM or SIGINT (Ctrl-C), as a program's main may use it. The
// first signal begins a shutdown, the second cuts its grace short, by Hurry; a third ends the process
// as if nobody listened. The end of ctx is the same as the first signal.
func RunUntilSignal(ctx context.Context, w *Worker) error {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	ended := make(chan struct{})
	heard := make(chan struct{})
	go func() {
		defer close(heard)
		defer signal.Stop(signals)
		for _, act := range []func(){w.Shutdown, w.Hurry} {
			select {
			case <-signals:
				act()
			case <-ended:
				return
			}
		}
	}()
	err := w.Run(ctx)
	close(ended)
	<-heard
	return err
}
