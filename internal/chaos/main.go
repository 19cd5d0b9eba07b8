// Command chaos torments the service as it runs where it is used, for a bounded time, and
// then asks whether it kept its promises.
//
//	producers ─┐            ┌─ proxy ─ replica ─ proxy ─┐
//	           ├─ journals ─┼─ proxy ─ replica ─ proxy ─┼─ PostgreSQL ─ a stranger's sessions
//	workers ───┘            └─ proxy ─ replica ─ proxy ─┘
//	   └──────── ledger, fenced by lease_no
//
// Replicas, workers, producers and PostgreSQL are processes of their own. A schedule that
// follows from the seed alone kills them, stops them for longer than a lease, restarts them,
// cuts and swallows what they say to each other, and locks rows and tables under them
// (schedule.go, faults.go). Then everything is healed, the workers finish what is left, and
// when all is at rest the histories of all processes are held against the tables (oracle.go).
//
// # What is on record
//
// Each process writes a line before each call and a line after it (journal.go). The line
// before is in the kernel's hands when the call begins, so that a process that is killed
// leaves behind what it may have done: a call whose outcome is not known.
//
// # The same again
//
// The schedule is the same for the same seed, and so is what each process decides by chance;
// how they meet in time is not. A failure that a seed shows once it mostly shows again.
//
//	go run ./internal/chaos -duration 2m -seed 7
//
// It exits with 0 where every promise was kept, 1 where one was broken or the run itself
// failed, 2 after a wrong command line.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout)
	stop()
	os.Exit(code)
}

// The processes that this program starts are itself, with one of these as first argument.
const (
	roleWorker   = "worker"
	roleProducer = "producer"
)

// run is the whole program, or one of its processes.
func run(ctx context.Context, args []string, out io.Writer) int {
	if len(args) > 0 && (args[0] == roleWorker || args[0] == roleProducer) {
		if err := runHand(ctx, args[0], args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}
	cfg, err := parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2 // the flags have said why
	}
	return perform(ctx, cfg, out)
}

// config is how much is to be done to whom.
type config struct {
	duration  time.Duration // of the faults; what comes before and after takes about a minute
	seed      uint64
	replicas  int
	workers   int
	producers int
	// rate is how many jobs a second all producers together store.
	rate float64
	// pause is the mean time between two faults.
	pause time.Duration
	// judging bounds the search for orders that explain the answers.
	judging time.Duration
	keep    bool // the folder with the histories, whatever the verdict
	binary  string
	judge   string // a folder that was kept: its histories are judged again, and nothing is run
}

func parse(args []string) (config, error) {
	cfg := config{seed: uint64(rand.Uint32())}
	flags := flag.NewFlagSet("chaos", flag.ContinueOnError)
	flags.DurationVar(&cfg.duration, "duration", 10*time.Minute, "how long faults happen")
	flags.Func("seed", "what the schedule of faults follows from; empty: by chance", func(text string) (err error) {
		if text != "" {
			cfg.seed, err = strconv.ParseUint(text, 10, 64)
		}
		return err
	})
	flags.IntVar(&cfg.replicas, "replicas", 3, "replicas of the service")
	flags.IntVar(&cfg.workers, "workers", 30, "worker processes")
	flags.IntVar(&cfg.producers, "producers", 2, "producer processes")
	flags.Float64Var(&cfg.rate, "rate", 40, "jobs a second")
	flags.DurationVar(&cfg.pause, "pause", 700*time.Millisecond, "mean time between two faults")
	flags.DurationVar(&cfg.judging, "judging", time.Minute, "bound of the search for orders of the calls that explain the answers")
	flags.BoolVar(&cfg.keep, "keep", false, "keep the folder with histories and logs after a PASS, too")
	flags.StringVar(&cfg.binary, "leasehold", "", "the leasehold binary to use; default: build it")
	flags.StringVar(&cfg.judge, "judge", "", "judge the histories in a folder that was kept, and run nothing")
	if err := flags.Parse(args); err != nil {
		return cfg, err
	}
	if flags.NArg() > 0 || cfg.duration <= 0 || cfg.replicas < 1 || cfg.workers < 1 || cfg.producers < 1 || cfg.rate <= 0 || cfg.pause <= 0 {
		err := errors.New("there must be a duration, replicas, workers, producers, a rate and a pause, and nothing else")
		fmt.Fprintln(flags.Output(), err)
		return cfg, err
	}
	return cfg, nil
}
