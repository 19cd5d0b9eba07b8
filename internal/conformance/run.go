package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// DefaultGrace is what Kubernetes gives a process after SIGTERM.
	DefaultGrace = 30 * time.Second
	// DefaultParallel is how many scenarios run side by side.
	DefaultParallel = 4
	// startsAtOnce bounds the workers that start side by side: starting takes a processor, and would
	// hold up those that are judged by their times.
	startsAtOnce = 2
	// plainest is the scenario whose evidence says most of a rule that is judged in all.
	plainest = "steady"
	// performances is how often a scenario is performed where the machine was too busy.
	performances = 3
)

// Config says what to check. Command is required.
type Config struct {
	// Command runs the worker.
	Command []string
	// Rules are those to judge. Default: all.
	Rules *regexp.Regexp
	// Grace is how long the worker may take to end after SIGTERM, 1 s..10 min. Default: 30 s.
	Grace time.Duration
	// Parallel is how many workers run side by side, each with a service of its own, 1..100.
	// Default: 4.
	Parallel int
	// Output gets what the workers print, each line behind the name of its scenario. Default: nowhere.
	Output io.Writer
	// Progress gets a line for each scenario that begins. Default: nowhere.
	Progress io.Writer

	room   chan struct{} // for the workers that run
	starts chan struct{} // for those that start
}

// Validate reports all faults at once.
func (c Config) Validate() error {
	var faults []error
	if len(c.Command) == 0 {
		faults = append(faults, errors.New("a command is needed, behind --"))
	}
	if c.Grace != 0 && (c.Grace < time.Second || c.Grace > 10*time.Minute) {
		faults = append(faults, fmt.Errorf("grace must be between 1s and 10m, got %v", c.Grace))
	}
	if c.Parallel < 0 || c.Parallel > 100 {
		faults = append(faults, fmt.Errorf("parallel must be between 1 and 100, got %d", c.Parallel))
	}
	if len(Names(c.Rules)) == 0 {
		faults = append(faults, fmt.Errorf("no rule matches %q", c.Rules))
	}
	return errors.Join(faults...)
}

// Names are the rules that match; all where only is nil.
func Names(only *regexp.Regexp) (names []string) {
	for _, r := range rules {
		if only == nil || only.MatchString(r.name) {
			names = append(names, r.name)
		}
	}
	return names
}

// Run runs the worker once for each scenario that a chosen rule needs, and judges what it did. The
// error is about the check itself: a command that cannot be run, or is no worker (*NotAWorkerError).
func Run(ctx context.Context, cfg Config) (Report, error) {
	if err := cfg.Validate(); err != nil {
		return Report{}, err
	}
	cfg.Grace = cmp.Or(cfg.Grace, DefaultGrace)
	if cfg.room == nil {
		cfg.room = make(chan struct{}, cmp.Or(cfg.Parallel, DefaultParallel))
		cfg.starts = make(chan struct{}, startsAtOnce)
	}
	if cfg.Output == nil {
		cfg.Output = io.Discard
	}
	if cfg.Progress == nil {
		cfg.Progress = io.Discard
	}
	chosen := Names(cfg.Rules)
	histories, err := performAll(ctx, cfg, needed(chosen))
	if err != nil {
		return Report{}, err
	}
	var report Report
	for _, r := range rules {
		if slices.Contains(chosen, r.name) {
			report.Rules = append(report.Rules, r.over(histories))
		}
	}
	return report, nil
}

// needed are the scenarios of some rules. A rule that is judged everywhere needs one at least.
func needed(chosen []string) []*scenario {
	return slices.DeleteFunc(slices.Clone(scenarios), func(sc *scenario) bool {
		return !slices.ContainsFunc(rules, func(r rule) bool {
			return slices.Contains(chosen, r.name) && (r.scenario == sc.name || r.scenario == "" && sc.name == plainest)
		})
	})
}

func performAll(ctx context.Context, cfg Config, list []*scenario) (map[string]*history, error) {
	group, ctx := errgroup.WithContext(ctx)
	var mu sync.Mutex // of histories, and of the writers
	histories := map[string]*history{}
	for _, sc := range list {
		select {
		case cfg.room <- struct{}{}:
		case <-ctx.Done():
			return nil, cmp.Or(group.Wait(), context.Cause(ctx))
		}
		group.Go(func() error {
			defer func() { <-cfg.room }()
			mu.Lock()
			fmt.Fprintf(cfg.Progress, "%s: %s\n", sc.name, sc.says) //nolint:errcheck // for a person
			mu.Unlock()
			h, err := performCalm(ctx, sc, cfg, &prefixed{name: sc.name, mu: &mu, to: cfg.Output})
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			histories[sc.name] = h
			return nil
		})
	}
	return histories, group.Wait()
}

// performCalm performs a scenario again where this process itself was held up meanwhile: a worker on
// the same machine was too, and nothing can be said of its times.
func performCalm(ctx context.Context, sc *scenario, cfg Config, out io.Writer) (h *history, err error) {
	for range performances {
		if h, err = perform(ctx, sc, cfg, out); err != nil || h.stalled <= stallAllowed {
			return h, err
		}
	}
	return h, nil
}

// over judges a rule in its scenario, or in all of them.
func (r rule) over(histories map[string]*history) Result {
	var seen *Result
	for _, sc := range scenarios {
		h := histories[sc.name]
		if h == nil || r.scenario != "" && r.scenario != sc.name {
			continue
		}
		f := r.judge(h)
		result := Result{Rule: r.name, Says: r.says, Scenario: sc.name, Verdict: f.verdict, Evidence: f.evidence}
		if seen == nil || worse(f.verdict, seen.Verdict) || f.verdict == seen.Verdict && sc.name == plainest {
			seen = &result
		}
	}
	return *seen
}

// worse orders verdicts over several scenarios: a rule that is judged everywhere passes where it was
// seen.
func worse(a, b Verdict) bool { return a == Fail && b != Fail || a == Pass && b == NotSeen }
