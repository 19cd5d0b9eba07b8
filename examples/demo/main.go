// Command demo proves on payments what Leasehold promises: a worker that is killed in the
// middle of a job costs nobody anything. It starts the service with a private database, three
// worker processes and a bank, then kills one worker, stops another until its lease has run
// out, and at the end holds the bank's ledger against the service's records. It exits with 0
// only if every payment was settled exactly once and every lease is on record.
//
// The workers (worker.go) are what a user of the service would write: they know the contract
// and nothing else.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

const (
	// patience bounds the demo, which takes about twenty seconds.
	patience = 55 * time.Second
	// buildPatience bounds the build before it, which takes minutes where nothing is cached.
	buildPatience = 10 * time.Minute
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// run is the demo, or one of its workers: they are processes of the same program.
func run(ctx context.Context, args []string) error {
	if len(args) > 0 && args[0] == "worker" {
		return runWorker(ctx, args[1:])
	}
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	binary := flags.String("leasehold", "", "the leasehold binary to use; default: build it")
	if err := flags.Parse(args); err != nil {
		return err
	}
	return demo(ctx, *binary)
}

func demo(ctx context.Context, binary string) (err error) {
	dir, err := os.MkdirTemp("", "leasehold-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if binary == "" {
		fmt.Println("building the service")
		binary = filepath.Join(dir, "leasehold")
		if err := build(ctx, binary); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not done within %v", patience))
	defer cancel()
	if err := perform(ctx, dir, binary); err != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	return nil
}

// perform is the demo itself.
func perform(ctx context.Context, dir, binary string) (err error) {
	out := newNarrator(os.Stdout)
	bank, err := openBank()
	if err != nil {
		return err
	}
	defer bank.close()
	out.say("bank", "a payment provider and a ledger, on %s", bank.url)

	svc, err := startService(ctx, dir, binary, out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, svc.stop(err != nil)) }()

	play, err := newPlay(ctx, svc, bank, out)
	if err != nil {
		return err
	}
	defer play.end()
	if err := play.run(ctx); err != nil {
		return err
	}
	return play.verdict(ctx)
}
