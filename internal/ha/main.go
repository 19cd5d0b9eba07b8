// Command ha shows that the service stays up while what it stands on is changed: three
// replicas work through real load while they are restarted one by one (rolling), while half of
// them are of the version before (upgrade), and while their primary dies and its standby is
// promoted (failover).
//
//	producers ─┐ round_robin  ┌─ replica ─┐
//	           ├──────────────┼─ replica ─┼─ PostgreSQL ─ (standby)
//	workers ───┘              └─ replica ─┘
//
// Workers retry what the contract says may be retried, and nothing else. In the end each call's
// answers are counted, every lease is listed, and what the workers were told is held against the
// tables (judge.go).
//
//	go run ./internal/ha rolling
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
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout)
	stop()
	os.Exit(code)
}

// config is what a trial can be told.
type config struct {
	trial string
	// duration is how long the load lasts at least, the last step of the trial included.
	duration time.Duration
	workers  int
	leases   string        // file for the list of every lease
	binary   string        // of this version; empty: it is built
	old      string        // the commit of the version before, for upgrade; empty: the newest tag, else firstCommit
	before   string        // the binary of the version before; empty: it is built
	behind   time.Duration // failover: how long the standby hears nothing before its primary dies
	async    bool          // failover: the standby follows behind, and what was lost is counted
	say      func(format string, args ...any)
}

// bound is for a trial as a whole: a hung one must end as a failure that says so.
const bound = 5 * time.Minute

func parse(args []string) (config, error) {
	var c config
	flags := flag.NewFlagSet("ha rolling|upgrade|failover", flag.ContinueOnError)
	flags.DurationVar(&c.duration, "duration", 20*time.Second, "how long the load lasts at least")
	flags.IntVar(&c.workers, "workers", 12, "workers")
	flags.StringVar(&c.leases, "leases", "", "file to write every lease to, one a line")
	flags.StringVar(&c.binary, "leasehold", "", "the leasehold binary to use; default: build it")
	flags.StringVar(&c.old, "old", "", "upgrade: the commit of the version before; default: the newest tag")
	flags.StringVar(&c.before, "before", "", "upgrade: the binary of the version before; default: build it from git")
	flags.BoolVar(&c.async, "async", false, "failover: to an asynchronous standby that is behind; count what it lost")
	flags.DurationVar(&c.behind, "behind", 0, "failover: how long the standby hears nothing before its primary dies, and what that loses is counted; 0: 2s with -async, else not at all")
	usage := errors.New("usage: ha rolling|upgrade|failover [flags]")
	if len(args) == 0 {
		return c, usage
	}
	c.trial = args[0]
	if err := flags.Parse(args[1:]); err != nil {
		return c, err
	}
	if trials[c.trial] == nil || flags.NArg() > 0 || c.duration <= 0 || c.workers < 1 {
		return c, usage
	}
	return c, nil
}

var trials = map[string]func(context.Context, *scene) error{
	"rolling": rolling, "upgrade": upgrade, "failover": failover,
}

// run is the whole program, and what tests call.
func run(ctx context.Context, args []string, out io.Writer) int {
	c, err := parse(args)
	if err != nil {
		fmt.Fprintln(out, err)
		return 2
	}
	began := time.Now()
	c.say = func(format string, args ...any) {
		tell(out, "%6.1fs  %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	}
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	faults, err := c.perform(ctx, out)
	if err != nil {
		faults = append(faults, err.Error())
	}
	for _, f := range faults {
		fmt.Fprintln(out, "BROKEN:", f)
	}
	if len(faults) > 0 {
		tell(out, "FAIL  %s: %d promises broken\n", c.trial, len(faults))
		return 1
	}
	tell(out, "PASS  %s\n", c.trial)
	return 0
}

// perform sets up a scene, plays the trial and judges. Nothing that it started is left.
func (c config) perform(ctx context.Context, out io.Writer) (faults []string, err error) {
	s := &scene{config: c}
	if s.dir, err = os.MkdirTemp("", "leasehold-ha-"); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	// PostgreSQL may run under another account, which has to get to its data.
	if err := os.Chmod(s.dir, 0o755); err != nil {
		return nil, err
	}
	if err := trials[c.trial](ctx, s); err != nil {
		s.tellLogs(out)
		return nil, err
	}
	e, err := s.gather(ctx)
	if err != nil {
		return nil, err
	}
	if err := e.report(out, c.leases); err != nil {
		return nil, err
	}
	return e.judge(), nil
}
