package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"
)

// figure is one row of the table.
type figure struct {
	name, unit string
	bound      Bound
}

// workload is one thing to measure. It yields one figure, or several that are measured
// together.
type workload struct {
	figures []figure
	prepare func(ctx context.Context, r *rig) (rounds, error)
}

// rounds measure a workload and its limit. Each gives a value for each figure, in their order;
// NaN for a figure that has no limit.
type rounds struct {
	// limit is nil where the workload has none.
	limit func(ctx context.Context) ([]float64, error)
	round func(ctx context.Context) ([]float64, error)
}

// Names lists the figures that match a pattern, in the order of the table.
func Names(only *regexp.Regexp) []string {
	var names []string
	for _, w := range chosen(only) {
		for _, f := range w.figures {
			names = append(names, f.name)
		}
	}
	return names
}

// chosen are the workloads of which any figure matches, with only those figures that do.
func chosen(only *regexp.Regexp) []workload {
	var out []workload
	for _, w := range workloads {
		if only == nil {
			out = append(out, w)
			continue
		}
		for _, f := range w.figures {
			if only.MatchString(f.name) {
				out = append(out, w)
				break
			}
		}
	}
	return out
}

// Run measures the workloads of which a figure's name matches only, all where it is nil, and
// returns their rows. A workload that fails is left out and reported in the error; the others
// are measured all the same, unless ctx has ended.
func Run(ctx context.Context, deps Deps, plan Plan, only *regexp.Regexp) ([]Result, error) {
	var results []Result
	var faults []error
	list := chosen(only)
	for i, w := range list {
		fmt.Fprintln(deps.Progress, fmt.Sprintf("%d/%d", i+1, len(list)), w.name())
		start, r := time.Now(), &rig{deps: deps, plan: plan}
		rows, err := runWorkload(ctx, r, w)
		if err != nil {
			r.say("failed: %v", err)
			faults = append(faults, fmt.Errorf("%s: %w", w.name(), err))
		}
		results = append(results, rows...)
		r.say("took %.1f s", time.Since(start).Seconds())
		if ctx.Err() != nil {
			break
		}
	}
	return results, errors.Join(faults...)
}

func (w workload) name() string {
	names := make([]string, len(w.figures))
	for i, f := range w.figures {
		names[i] = f.name
	}
	return strings.Join(names, ", ")
}

func runWorkload(ctx context.Context, r *rig, w workload) (rows []Result, err error) {
	defer func() {
		if closing := r.close(); closing != nil {
			err = errors.Join(err, closing)
		}
	}()
	rs, err := w.prepare(ctx, r)
	if err != nil {
		return nil, err
	}
	pairs := make([][]pair, len(w.figures))
	for n := range r.plan.Rounds {
		limits, values, err := runPair(ctx, r, rs, len(w.figures))
		if err != nil {
			return nil, err
		}
		for i := range w.figures {
			pairs[i] = append(pairs[i], pair{limit: limits[i], value: values[i]})
		}
		r.say("round %d of %d: %s", n+1, r.plan.Rounds, strings.Join(append(told(w, limits, values), r.takeNotes()...), "; "))
	}
	for i, f := range w.figures {
		if slices.ContainsFunc(pairs[i], func(p pair) bool { return math.IsNaN(p.value) }) {
			r.say("%s cannot be known on this system", f.name)
			continue
		}
		rows = append(rows, summarize(f, pairs[i]))
	}
	return rows, nil
}

// runPair runs a round of the limit and then one of the workload.
func runPair(ctx context.Context, r *rig, rs rounds, figures int) (limits, values []float64, err error) {
	limits = make([]float64, figures)
	for i := range limits {
		limits[i] = math.NaN()
	}
	if rs.limit != nil {
		if limits, err = rs.limit(ctx); err != nil {
			return nil, nil, fmt.Errorf("limit: %w", err)
		}
	}
	values, err = rs.round(ctx)
	return limits, values, err
}

// told is what the line of a round says of its figures.
func told(w workload, limits, values []float64) []string {
	var parts []string
	for i, f := range w.figures {
		part := fmt.Sprintf("%s %s", number(values[i]), f.unit)
		if len(w.figures) > 1 {
			part = f.name + " " + part
		}
		if limits[i] > 0 {
			part += fmt.Sprintf(" of %s, ratio %.2f", number(limits[i]), values[i]/limits[i])
		}
		parts = append(parts, part)
	}
	return parts
}
