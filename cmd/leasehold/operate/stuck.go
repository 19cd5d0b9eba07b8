package operate

import (
	"cmp"
	"context"
	"strings"

	"github.com/spf13/cobra"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

var diagnosisWords = []string{"held", "crash-loop", "overrun", "lease-expired", "stalled", "never-heartbeated", "worker-silent"}

func newStuck(h Host) *cobra.Command {
	var queue string
	var diagnoses []string
	var limit int
	var check bool
	cmd := &cobra.Command{Use: "stuck", Short: "List jobs that need a look, with what is wrong and what to do", Args: cobra.NoArgs}
	cmd.Flags().StringVar(&queue, "queue", "", "only this queue")
	cmd.Flags().StringSliceVar(&diagnoses, "diagnosis", nil, "only these: "+strings.Join(diagnosisWords, ", "))
	cmd.Flags().IntVar(&limit, "limit", 50, "how many at most; 0: all")
	cmd.Flags().BoolVar(&check, "check", false, "exit code 3 where there is one")
	must(cmd.RegisterFlagCompletionFunc("diagnosis", cobra.FixedCompletions(diagnosisWords, cobra.ShellCompDirectiveNoFileComp)))
	return h.command(cmd, func(ctx context.Context, s *session, _ []string) error {
		req := &pb.ListStuckRequest{Queue: optional(queue)}
		for _, name := range diagnoses {
			value, is := pb.Diagnosis_value["DIAGNOSIS_"+strings.ToUpper(strings.ReplaceAll(name, "-", "_"))]
			if !is || value == 0 {
				return usage("--diagnosis must be one of %s, got %q", strings.Join(diagnosisWords, ", "), name)
			}
			req.Diagnoses = append(req.Diagnoses, pb.Diagnosis(value))
		}
		all, more, err := pages(limit, func(size int32, token string) ([]*pb.StuckJob, string, error) {
			req.PageSize, req.PageToken = &size, token
			resp, err := s.leases.ListStuck(ctx, req)
			return resp.GetJobs(), resp.GetNextPageToken(), err
		})
		if err != nil {
			return err
		}
		if s.people() {
			err = s.stuck(all, more)
		} else {
			err = s.message(&pb.ListStuckResponse{Jobs: all})
		}
		if err == nil && check && len(all) > 0 {
			return found("%s need a look", plural(len(all), "job"))
		}
		return err
	})
}

var diagnosisColors = map[pb.Diagnosis]string{
	pb.Diagnosis_DIAGNOSIS_HELD: bad, pb.Diagnosis_DIAGNOSIS_CRASH_LOOP: bad,
}

// stuck lists the jobs and, once for each diagnosis, what to do.
func (p *printer) stuck(jobs []*pb.StuckJob, more bool) error {
	rows := make([][]string, len(jobs))
	var order []pb.Diagnosis
	remedies := map[pb.Diagnosis]string{}
	counts := map[pb.Diagnosis]int{}
	for i, j := range jobs {
		d := j.GetDiagnosis()
		if counts[d]++; counts[d] == 1 {
			order = append(order, d)
			remedies[d] = j.GetRemedyText()
		}
		rows[i] = []string{
			j.GetJobId(), clean(j.GetQueue()), p.paint(cmp.Or(diagnosisColors[d], warn), upper(d, "DIAGNOSIS_")), relative(p.now, j.GetSince()),
			cut(j.GetSubject(), 40), cut(j.GetLeaseOwner(), 30), number(j.GetLeaseNo()), cut(j.GetStage(), 30),
			number(j.GetAttemptsUsed()) + " of " + number(j.GetMaxAttempts()),
		}
	}
	err := p.listed(rows, []string{"job", "queue", "diagnosis", "since", "subject", "owner", "lease", "stage", "attempts"}, len(jobs), more)
	for _, d := range order {
		if err != nil {
			return err
		}
		err = p.say("\n%s, %s: %s", p.paint(bold, upper(d, "DIAGNOSIS_")), plural(counts[d], "job"), clean(remedies[d]))
	}
	return err
}
