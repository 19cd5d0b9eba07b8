package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// shownViolations is how many are listed; the folder has the evidence for all.
const shownViolations = 20

// conclude prints the report, whose last line is the verdict, and returns the exit code.
func (p *performance) conclude(ctx context.Context, e *evidence, v *verdict) int {
	if p.torments != nil {
		done, _ := p.torments.counts()
		p.table("fault", "times", count(done))
	}
	jobs, leases := 0, 0
	if e != nil {
		p.outcomes(e)
		p.states(e)
		jobs, leases = len(e.Tables), len(e.Records)
	}
	var found []string
	for _, err := range p.faults {
		found = append(found, err.Error())
	}
	if v != nil {
		found = append(found, v.violations...)
		p.judged(e, v)
	}
	result := fmt.Sprintf("seed=%d duration=%s jobs=%d leases=%d", p.cfg.seed, time.Since(p.began).Round(time.Second), jobs, leases)
	switch {
	case ctx.Err() != nil:
		p.remove()
		tell(p.out, "chaos: INTERRUPTED %s", result)
		return 1
	case len(found) == 0 && v != nil:
		if p.cfg.keep || p.cfg.judge != "" {
			tell(p.out, "histories and logs are in %s", p.dir)
		} else {
			p.remove()
		}
		tell(p.out, "chaos: PASS %s", result)
		return 0
	}
	fmt.Fprintln(p.out)
	for _, text := range found[:min(len(found), shownViolations)] {
		tell(p.out, "VIOLATION %s", text)
	}
	if more := len(found) - shownViolations; more > 0 {
		tell(p.out, "and %d more", more)
	}
	p.keepFindings(found)
	tell(p.out, "the same faults again: go run ./internal/chaos -duration %s -seed %d", p.cfg.duration, p.cfg.seed)
	tell(p.out, "the same histories:    go run ./internal/chaos -judge %s", p.dir)
	tell(p.out, "chaos: FAIL %s: %d violations", result, len(found))
	return 1
}

// remove removes what the run has left, but not a folder that was there before.
func (p *performance) remove() {
	if p.cfg.judge != "" {
		return
	}
	if err := os.RemoveAll(p.dir); err != nil {
		tell(p.out, "%s is left: %v", p.dir, err)
	}
}

// keepFindings leaves all violations beside the histories.
func (p *performance) keepFindings(found []string) {
	if err := os.WriteFile(p.dir+"/violations.txt", []byte(strings.Join(found, "\n")+"\n"), 0o644); err != nil {
		tell(p.out, "the violations could not be kept: %v", err)
	}
}

// row is a line of a table: a word and a number.
type row struct {
	word string
	n    int
}

func count[K ~string](of map[K]int) (rows []row) {
	for k, n := range of {
		rows = append(rows, row{string(k), n})
	}
	slices.SortFunc(rows, func(a, b row) int { return cmp.Or(b.n-a.n, strings.Compare(a.word, b.word)) })
	return rows
}

func (p *performance) table(what, number string, rows []row) {
	tell(p.out, "\n%-52s %8s", what, number)
	for _, r := range rows {
		tell(p.out, "  %-50s %8d", r.word, r.n)
	}
}

// outcomes prints what each method was answered, item by item.
func (p *performance) outcomes(e *evidence) {
	of := map[string]map[string]int{}
	for _, i := range e.items {
		method := strings.TrimPrefix(i.method, "Batch")
		word := i.refusal.word()
		switch answer := i.answer.(type) {
		case *pb.AcquireLeaseResponse:
			if len(answer.GetLeases()) == 0 {
				word = strings.TrimPrefix(answer.GetEmptyReason().String(), "EMPTY_REASON_")
			}
		case interface{ GetAlreadyApplied() bool }:
			if answer.GetAlreadyApplied() {
				word = "OK, already applied"
			}
		}
		if i.end.IsZero() {
			word = "(the caller was killed)"
		}
		if of[method] == nil {
			of[method] = map[string]int{}
		}
		of[method][word]++
	}
	var rows []row
	for _, method := range slices.Sorted(maps.Keys(of)) {
		for _, r := range count(of[method]) {
			rows = append(rows, row{fmt.Sprintf("%-13s %s", method, r.word), r.n})
		}
	}
	p.table("outcome", "calls", rows)
}

// states prints where the jobs are, and how the leases ended.
func (p *performance) states(e *evidence) {
	states, ends := map[string]int{}, map[string]int{}
	for _, r := range e.Tables {
		states[r.Job.State.String()]++
	}
	for _, r := range e.Records {
		if r.EndedBy == nil {
			ends["(none)"]++
		} else {
			ends[*r.EndedBy]++
		}
	}
	p.table("state", "jobs", count(states))
	p.table("end", "leases", count(ends))
}

// judged says how far the verdict reaches.
func (p *performance) judged(e *evidence, v *verdict) {
	tell(p.out, "\nAll %d jobs were held against the invariants. For %d of them an order of the calls was looked for\n"+
		"that explains all answers; for %d of these that took too long.", len(e.Tables), v.judged, v.unjudged)
	tell(p.out, "Jobs with a key that are stored though no call for them was told so: %d.\n", v.doneAfterAll)
}

// tell prints for people.
func tell(out io.Writer, format string, args ...any) {
	fmt.Fprintln(out, fmt.Sprintf(format, args...))
}
