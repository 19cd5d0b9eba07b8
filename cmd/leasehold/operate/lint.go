package operate

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

var severityWords = []string{"info", "warning", "error"}

func newLint(h Host) *cobra.Command {
	req := &pb.LintRequest{}
	var queue, severity string
	var budget int64
	cmd := &cobra.Command{
		Use: "lint", Short: "Check a live system for what makes leases go wrong; exit code 3 where it finds something", Args: cobra.NoArgs,
		Long: "lint looks at the newest leases, at the watcher and at the database, and tells what is not as\n" +
			"it should be: with the numbers, and with what to change. It changes nothing, and costs the\n" +
			"same on any history. A fault that was mended is still seen in the leases of the last day:\n" +
			"--look-back 10m tells whether it helped.",
	}
	cmd.Flags().StringVar(&queue, "queue", "", "only this queue, and nothing about the database")
	cmd.Flags().Var(span{&req.LookBack}, "look-back", "only leases that began within so long, 1m..365d (default 1d)")
	cmd.Flags().Var(span{&req.MaxTransactionAge}, "max-transaction-age", "how long a transaction may be open, 1s..30d (default 5m)")
	cmd.Flags().Var(size{&budget}, "size-budget", "bytes that the tables may have within 30 days, as 50GiB (default 100GiB)")
	cmd.Flags().StringVar(&severity, "severity", "warning", "the least severity that makes the exit code 3: "+strings.Join(severityWords, ", "))
	must(cmd.RegisterFlagCompletionFunc("severity", cobra.FixedCompletions(severityWords, cobra.ShellCompDirectiveNoFileComp)))
	return h.command(cmd, func(ctx context.Context, s *session, _ []string) error {
		least, is := pb.LintSeverity_value["LINT_SEVERITY_"+strings.ToUpper(severity)]
		if !is || least == 0 {
			return usage("--severity must be one of %s, got %q", strings.Join(severityWords, ", "), severity)
		}
		if req.Queue = optional(queue); budget > 0 {
			req.SizeBudget = &budget
		}
		resp, err := s.queues.Lint(ctx, req)
		if err != nil {
			return err
		}
		if err := s.lint(resp); err != nil {
			return err
		}
		n := 0
		for _, f := range resp.GetFindings() {
			if int32(f.GetSeverity()) >= least {
				n++
			}
		}
		if n > 0 {
			return found("%s", plural(n, "finding"))
		}
		return nil
	})
}

var severityColors = map[pb.LintSeverity]string{
	pb.LintSeverity_LINT_SEVERITY_ERROR: bad, pb.LintSeverity_LINT_SEVERITY_WARNING: warn,
}

func (p *printer) lint(resp *pb.LintResponse) error {
	if !p.people() {
		return p.message(resp)
	}
	for _, f := range resp.GetFindings() {
		err := p.say("%s %s, %s\n  %s\n  %s %s\n", p.paint(severityColors[f.GetSeverity()], upper(f.GetSeverity(), "LINT_SEVERITY_")),
			p.paint(bold, upper(f.GetCheck(), "LINT_CHECK_")), clean(f.GetSubject()), clean(f.GetMessage()), p.paint(good, "→"), clean(f.GetRemedy()))
		if err != nil {
			return err
		}
	}
	return p.say("%s; %s looked at", plural(len(resp.GetFindings()), "finding"), plural(int(resp.GetLeasesExamined()), "lease"))
}
