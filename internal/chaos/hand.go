package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

// A hand is a worker or a producer: a process of its own, which learns what it has to know
// from its arguments, and from its standard input that it is to calm down, and by the end of
// that that it is to stop. A hand whose parent has died therefore stops as well.

// wordCalm asks a worker to work off what is there: without mishaps of its own.
const wordCalm = "calm"

// hand is what all such processes have.
type hand struct {
	name    string
	seed    uint64
	rate    float64
	clients *clients
	ledger  string
	calm    atomic.Bool
}

func runHand(ctx context.Context, role string, args []string) error {
	h := &hand{}
	flags := flag.NewFlagSet(role, flag.ContinueOnError)
	flags.StringVar(&h.name, "name", "", "its name")
	flags.Uint64Var(&h.seed, "seed", 0, "what it decides by chance follows from this")
	flags.Float64Var(&h.rate, "rate", 0, "jobs a second, of a producer")
	flags.StringVar(&h.ledger, "ledger", "", "URL of the ledger")
	replicas := flags.String("replicas", "", "addresses of the replicas")
	file := flags.String("journal", "", "where calls are written down")
	if err := flags.Parse(args); err != nil {
		return err
	}
	j, err := openJournal(*file)
	if err != nil {
		return err
	}
	addresses := strings.Split(*replicas, ",")
	if h.clients, err = dial(addresses, j, int(h.seed%uint64(len(addresses)))); err != nil {
		return err
	}
	defer h.clients.close()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go h.listen(os.Stdin, stop)
	if role == roleProducer {
		return newProducer(h).run(ctx)
	}
	return newWorker(h).run(ctx)
}

// listen hears what the parent says, until it says no more.
func (h *hand) listen(from io.Reader, stop context.CancelFunc) {
	defer stop()
	for lines := bufio.NewScanner(from); lines.Scan(); {
		if lines.Text() == wordCalm {
			h.calm.Store(true)
		}
	}
}

// chance makes a source of chance for one thing that a hand does. What it draws follows from
// the seed and the name, whatever else goes on.
func (h *hand) chance(of uint64) *rand.Rand { return rand.New(rand.NewPCG(h.seed, of)) }

// oneIn draws yes once in n times.
func oneIn(rng *rand.Rand, n int) bool { return rng.IntN(n) == 0 }

// errFenced is what the ledger answers to a lease that is not the newest.
var errFenced = errors.New("the ledger has seen a later lease")

// upTo draws a time below most.
func upTo(rng *rand.Rand, most time.Duration) time.Duration {
	return time.Duration(rng.Int64N(max(1, int64(most))))
}
