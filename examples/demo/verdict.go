package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// record is what the service and the bank have of one payment.
type record struct {
	scenario
	ledger settled
	jobs   []*jobRecord // its own, then those that followed from it
}

type jobRecord struct {
	job    *pb.Job
	leases []*pb.LeaseRecord
}

// faults collects what is not as promised.
type faults struct{ list []error }

func (f *faults) unless(ok bool, format string, args ...any) {
	if !ok {
		f.list = append(f.list, fmt.Errorf(format, args...))
	}
}

// verdict shows the records and returns what is not as promised.
func (p *play) verdict(ctx context.Context) error {
	records, err := p.records(ctx)
	if err != nil {
		return err
	}
	fmt.Println()
	if err := errors.Join(printPayments(records), printLeases(records)); err != nil {
		return err
	}
	f := &faults{}
	for _, r := range records {
		checkLedger(f, r)
		checkLeases(f, r)
		p.checkStory(f, r)
	}
	p.checkLate(f)
	if err := p.checkLint(ctx, f); err != nil {
		return err
	}
	if err := errors.Join(f.list...); err != nil {
		return fmt.Errorf("this is not what was promised:\n%w", err)
	}
	postings, cents := p.bank.total()
	fmt.Printf("Every one of %d payments was settled exactly once, %s in all, and every lease is on record: true.\n", postings, euros(cents))
	return nil
}

// checkLint: a worker that was killed and one that was frozen are accidents. Nothing about the
// set-up is wrong, so that lint finds nothing in the service that is left running.
func (p *play) checkLint(ctx context.Context, f *faults) error {
	resp, err := p.svc.queues.Lint(ctx, &pb.LintRequest{})
	for _, finding := range resp.GetFindings() {
		f.unless(false, "lint: %s: %s", finding.GetSubject(), finding.GetMessage())
	}
	return err
}

func (p *play) records(ctx context.Context) ([]record, error) {
	var out []record
	for _, s := range p.cast {
		r := record{scenario: s, ledger: p.bank.of(s.ID)}
		list, err := p.svc.jobs.ListJobs(ctx, &pb.ListJobsRequest{Filter: &pb.JobFilter{Subject: proto.String(subjectOf(s.ID))}})
		if err != nil {
			return nil, err
		}
		for _, job := range list.GetJobs() {
			leases, err := p.svc.jobs.ListLeases(ctx, &pb.ListLeasesRequest{JobId: job.GetJobId()})
			if err != nil {
				return nil, err
			}
			r.jobs = append(r.jobs, &jobRecord{job: job, leases: leases.GetLeases()})
		}
		if len(r.jobs) == 0 || r.jobs[0].job.GetJobId() != p.jobs[s.ID] {
			return nil, fmt.Errorf("%s: its job %s is not among those of its subject", s.ID, p.jobs[s.ID])
		}
		out = append(out, r)
	}
	return out, nil
}

// table prints rows in columns; the first is the header. Columns are separated by tabs.
func table(rows []string) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	_, err := io.WriteString(w, strings.Join(rows, "\n")+"\n\n")
	return errors.Join(err, w.Flush())
}

func printPayments(records []record) error {
	rows := []string{"PAYMENT\tKIND\tSTATE\tLEASES\tAUTHORISED\tIN LEDGER\tAMOUNT\tSETTLED BY\tREFUSED BY THE LEDGER"}
	for _, r := range records {
		var amounts, by []string
		for _, posted := range r.ledger.postings {
			amounts, by = append(amounts, euros(posted.Amount)), append(by, posted.Owner)
		}
		rows = append(rows, fmt.Sprintf("%s\t%s\t%s\t%d\t%d x\t%d x\t%s\t%s\t%s", r.ID, r.kind, word(r.jobs[0].job.GetState().String()),
			len(r.jobs[0].leases), r.ledger.auths, len(r.ledger.postings), strings.Join(amounts, " "), strings.Join(by, " "), r.ledger.refused))
	}
	return table(rows)
}

func printLeases(records []record) error {
	rows := []string{"PAYMENT\tQUEUE\tJOB\tLEASE\tOWNER\tSTAGE\tBEATS\tHELD FOR\tEND\tLATE CALLS"}
	for _, r := range records {
		for _, j := range r.jobs {
			for _, l := range j.leases {
				rows = append(rows, strings.Join([]string{r.ID, j.job.GetQueue(), j.job.GetJobId(), leaseRow(l)}, "\t"))
			}
		}
	}
	return table(rows)
}

func leaseRow(l *pb.LeaseRecord) string {
	held := l.GetEndedAt().AsTime().Sub(l.GetLeasedAt().AsTime()).Round(10 * time.Millisecond)
	late := ""
	if c := l.GetLateCalls(); c != nil {
		late = fmt.Sprintf("%d, the last: %s", c.GetCount(), c.GetLastCall())
	}
	return fmt.Sprintf("%d\t%s\t%s\t%d\t%v\t%s\t%s", l.GetLeaseNo(), l.GetLeaseOwner(), l.GetStage(), l.GetBeats(),
		held, word(l.GetEnd().String()), late)
}

func euros(cents int) string { return fmt.Sprintf("%d.%02d", cents/100, cents%100) }

// word is an enum's value without its prefix, for people.
func word(value string) string {
	for _, prefix := range []string{"LEASE_END_", "JOB_STATE_"} {
		value = strings.TrimPrefix(value, prefix)
	}
	return strings.ToLower(strings.ReplaceAll(value, "_", " "))
}
