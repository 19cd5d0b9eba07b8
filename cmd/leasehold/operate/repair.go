package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// bulk is RetryJobs or CancelJobs, in batches.
type bulk struct {
	filterFlags
	verb, past string
	dryRun     bool
	yes        bool
	note       string
	batch      int32
	// call makes one batch.
	call func(context.Context, *session, *pb.JobSelection, bool, string) ([]*pb.BulkResult, string, error)
	// asksForIDs: it cannot be undone even where each job was named.
	asksForIDs bool
}

func (b *bulk) add(cmd *cobra.Command) {
	b.filterFlags.add(cmd)
	cmd.Flags().BoolVar(&b.dryRun, "dry-run", false, "only count what it would act on; exit code 3 where there is something")
	cmd.Flags().BoolVar(&b.yes, "yes", false, "do not ask")
	cmd.Flags().StringVar(&b.note, "note", "", "why, for the record")
	cmd.Flags().Int32Var(&b.batch, "batch", 500, "jobs per batch, 1..1000")
}

func newRetry(h Host) *cobra.Command {
	b := &bulk{verb: "retry", past: "retried"}
	b.call = func(ctx context.Context, s *session, sel *pb.JobSelection, dryRun bool, token string) ([]*pb.BulkResult, string, error) {
		resp, err := s.queues.RetryJobs(ctx, &pb.RetryJobsRequest{
			Selection: sel, DryRun: dryRun, BatchSize: &b.batch, PageToken: token, Actor: s.actor, Note: b.note,
		})
		return resp.GetResults(), resp.GetNextPageToken(), err
	}
	cmd := &cobra.Command{
		Use: "retry [JOB ...]", Short: "Let DEAD and STUCK jobs, and those that wait for a backoff, run now",
		Long: "retry lets jobs run again with a new budget of attempts: DEAD and STUCK ones, and PENDING\n" +
			"ones that wait for a backoff. Name them, or choose them by flags; those that have nothing\n" +
			"to be retried are passed over. It goes in batches. If it ends in the middle, run it again.",
	}
	b.add(cmd)
	return h.command(cmd, b.run)
}

func newCancel(h Host) *cobra.Command {
	b := &bulk{verb: "cancel", past: "cancelled", asksForIDs: true}
	b.call = func(ctx context.Context, s *session, sel *pb.JobSelection, dryRun bool, token string) ([]*pb.BulkResult, string, error) {
		resp, err := s.queues.CancelJobs(ctx, &pb.CancelJobsRequest{
			Selection: sel, DryRun: dryRun, BatchSize: &b.batch, PageToken: token, Actor: s.actor, Note: b.note,
		})
		return resp.GetResults(), resp.GetNextPageToken(), err
	}
	cmd := &cobra.Command{
		Use: "cancel [JOB ...]", Short: "Cancel jobs; those that are being worked on are asked to stop",
		Long: "cancel ends PENDING and STUCK jobs at once and for good. The worker of a PROCESSING one is\n" +
			"told by its next heartbeat. Name them, or choose them by flags. It goes in batches. If it\n" +
			"ends in the middle, run it again.",
	}
	b.add(cmd)
	return h.command(cmd, b.run)
}

// tally is what became of the jobs of all batches.
type tally struct {
	DryRun  bool           `json:"dryRun"`
	Jobs    int            `json:"jobs"`
	Batches int            `json:"batches"`
	States  map[string]int `json:"states"`
	Refused []refusedJob   `json:"refused"`
	reasons map[string]int
}

type refusedJob struct {
	JobID   string `json:"jobId"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

func (t *tally) add(results []*pb.BulkResult) {
	t.Batches++
	for _, r := range results {
		if e := r.GetError(); e != nil {
			reason := upper(e.GetReason(), "ERROR_REASON_")
			t.Refused = append(t.Refused, refusedJob{r.GetJobId(), reason, e.GetMessage()})
			t.reasons[reason]++
			continue
		}
		t.Jobs++
		t.States[upper(r.GetState(), "JOB_STATE_")]++
	}
}

func (b *bulk) run(ctx context.Context, s *session, ids []string) error {
	filter, err := b.read()
	switch {
	case err != nil:
		return err
	case len(ids) == 0 && filter == nil:
		return usage("name jobs, or choose them by flags as --queue and --state")
	case len(ids) > 0 && filter != nil:
		return usage("name jobs, or choose them by flags, but not both")
	case len(ids) > 0 && b.dryRun:
		return b.look(ctx, s, selections(ids, nil))
	case b.dryRun:
		return b.look(ctx, s, selections(nil, filter))
	}
	if err := b.agree(ctx, s, ids, filter); err != nil {
		return err
	}
	return b.do(ctx, s, selections(ids, filter))
}

// selections are batches of ids, or one filter.
func selections(ids []string, filter *pb.JobFilter) []*pb.JobSelection {
	if filter != nil {
		return []*pb.JobSelection{{Filter: filter}}
	}
	var out []*pb.JobSelection
	for chunk := range slices.Chunk(ids, maxPage) {
		out = append(out, &pb.JobSelection{JobIds: chunk})
	}
	return out
}

// agree asks, with the number of jobs, where it has to.
func (b *bulk) agree(ctx context.Context, s *session, ids []string, filter *pb.JobFilter) error {
	if b.yes || filter == nil && !b.asksForIDs {
		return nil
	}
	n := len(ids)
	if _, is := terminal(s.host.In); filter != nil && is {
		t, err := b.batches(ctx, s, selections(nil, filter), true)
		if err != nil {
			return err
		}
		n = t.Jobs
	} else if filter != nil {
		return s.ask(false, "This would %s all jobs that fit (--dry-run counts them).", b.verb)
	}
	return s.ask(false, "This would %s %s.", b.verb, plural(n, "job"))
}

func (b *bulk) look(ctx context.Context, s *session, sels []*pb.JobSelection) error {
	t, err := b.batches(ctx, s, sels, true)
	if err != nil {
		return err
	}
	if err := b.report(s, t, "would be "+b.past); err != nil {
		return err
	}
	if t.Jobs > 0 {
		return found("dry run: %s would be %s", plural(t.Jobs, "job"), b.past)
	}
	return nil
}

func (b *bulk) do(ctx context.Context, s *session, sels []*pb.JobSelection) error {
	t, err := b.batches(ctx, s, sels, false)
	if reported := b.report(s, t, b.past); reported != nil {
		return reported
	}
	if err != nil {
		// The code of the cause, with what was done before it.
		failure := &Failure{Code: exitFailed}
		errors.As(err, &failure)
		return &Failure{failure.Code, fmt.Errorf("%s %s, then: %w; run it again to go on", plural(t.Jobs, "job"), b.past, err)}
	}
	if len(t.Refused) > 0 {
		return failed("%s refused", plural(len(t.Refused), "job"))
	}
	return nil
}

// batches makes all batches. A dry run sees the same jobs as the act.
func (b *bulk) batches(ctx context.Context, s *session, sels []*pb.JobSelection, dryRun bool) (*tally, error) {
	t := &tally{DryRun: dryRun, States: map[string]int{}, Refused: []refusedJob{}, reasons: map[string]int{}}
	defer s.progressEnd()
	for _, sel := range sels {
		for token := ""; ; {
			results, next, err := b.patiently(ctx, s, sel, dryRun, token)
			if err != nil {
				return t, err
			}
			t.add(results)
			s.progressLine("%s: %s, %s refused", b.verb, plural(t.Jobs, "job"), number(len(t.Refused)))
			if token = next; token == "" {
				break
			}
		}
	}
	return t, nil
}

const (
	batchTries = 8
	batchPause = 250 * time.Millisecond
)

// patiently repeats a batch that a busy, draining or lost replica did not answer: a batch that
// is repeated does no harm.
func (b *bulk) patiently(ctx context.Context, s *session, sel *pb.JobSelection, dryRun bool, token string) (results []*pb.BulkResult, next string, err error) {
	pause := batchPause
	for try := 1; ; try++ {
		results, next, err = b.call(ctx, s, sel, dryRun, token)
		if err == nil || !again(err) || try == batchTries {
			return results, next, err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, "", err
		}
		pause = min(2*pause, 5*time.Second)
	}
}

func (b *bulk) report(s *session, t *tally, what string) error {
	if !s.people() {
		return s.value(t)
	}
	states := make([]string, 0, len(t.States))
	for _, name := range slices.Sorted(maps.Keys(t.States)) {
		states = append(states, fmt.Sprintf("%s %s", number(t.States[name]), s.state(name)))
	}
	line := plural(t.Jobs, "job") + " " + what
	if len(states) > 0 {
		line += ": " + strings.Join(states, ", ")
	}
	if err := s.say("%s (%s)", line, batchesText(t.Batches)); err != nil || len(t.Refused) == 0 {
		return err
	}
	shown := t.Refused[:min(len(t.Refused), 20)]
	rows := make([][]string, len(shown))
	for i, r := range shown {
		rows[i] = []string{r.JobID, cmp.Or(r.Reason, "?"), cut(r.Message, 120)}
	}
	return s.table([]string{"refused", "reason", ""}, rows)
}

func batchesText(n int) string {
	if n == 1 {
		return "1 batch"
	}
	return number(n) + " batches"
}

func newResolve(h Host) *cobra.Command {
	var completed, dead, yes bool
	var note, result string
	cmd := &cobra.Command{
		Use: "resolve JOB ...", Short: "Record what really became of STUCK or DEAD jobs: completed, or dead for good", Args: cobra.MinimumNArgs(1),
	}
	cmd.Flags().BoolVar(&completed, "completed", false, "the work did take effect")
	cmd.Flags().BoolVar(&dead, "dead", false, "it never will")
	cmd.Flags().StringVar(&note, "note", "", "why, for the record; required")
	cmd.Flags().StringVar(&result, "result", "", "with --completed: the result to keep, as JSON")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return h.command(cmd, func(ctx context.Context, s *session, ids []string) error {
		switch {
		case completed == dead:
			return usage("say what became of it: --completed or --dead")
		case note == "":
			return usage("--note is required: it is what the next person knows of it")
		case result != "" && dead:
			return usage("--result belongs to --completed")
		}
		verb := "dead for good"
		if completed {
			verb = "completed"
		}
		if err := s.ask(yes, "This records %s as %s.", plural(len(ids), "job"), verb); err != nil {
			return err
		}
		return s.resolveAll(ctx, ids, completed, result, note)
	})
}

// resolveAll goes on behind a job that is refused, so that one of many does not hide the rest.
func (s *session) resolveAll(ctx context.Context, ids []string, completed bool, result, note string) error {
	done := &pb.ListJobsResponse{}
	var faults []error
	for _, id := range ids {
		req := &pb.ResolveJobRequest{JobId: id, Actor: s.actor, Note: note, Resolution: &pb.ResolveJobRequest_Dead{Dead: &pb.ResolvedDead{}}}
		if completed {
			c := &pb.ResolvedCompleted{}
			if result != "" {
				c.Result = &pb.Payload{Content: &pb.Payload_Json{Json: result}}
			}
			req.Resolution = &pb.ResolveJobRequest_Completed{Completed: c}
		}
		resp, err := s.queues.ResolveJob(ctx, req)
		if err != nil {
			faults = append(faults, fmt.Errorf("job %s: %w", clean(id), err))
			continue
		}
		done.Jobs = append(done.Jobs, resp.GetJob())
	}
	var err error
	if s.people() {
		err = s.listed(s.jobRows(done.GetJobs()), jobHeader, len(done.GetJobs()), false)
	} else {
		err = s.message(done)
	}
	if len(faults) > 0 {
		code := &Failure{Code: exitFailed}
		errors.As(faults[0], &code)
		return &Failure{code.Code, errors.Join(faults...)}
	}
	return err
}
