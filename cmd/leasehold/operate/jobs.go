package operate

import (
	"context"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

const maxPage = 1000

func newJobs(h Host) *cobra.Command {
	return group("jobs", "List, look at and repair jobs", newJobsList(h), newJobsGet(h), newRetry(h), newCancel(h), newResolve(h))
}

// filterFlags are those that choose jobs.
type filterFlags struct {
	filter pb.JobFilter
	queue  string
	states []string
	// subject and code are set where not empty.
	subject, code string
}

var stateWords = []string{"pending", "processing", "stuck", "completed", "dead", "cancelled"}

func (f *filterFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.queue, "queue", "", "only this queue")
	cmd.Flags().StringSliceVar(&f.states, "state", nil, "only these states: "+strings.Join(stateWords, ", "))
	cmd.Flags().StringVar(&f.subject, "subject", "", "only this subject")
	cmd.Flags().StringVar(&f.code, "error-code", "", "only jobs whose latest error has this code")
	cmd.Flags().Var(moment{&f.filter.CreatedFrom}, "created-from", "only jobs enqueued at or after: RFC 3339, or 2h for two hours ago")
	cmd.Flags().Var(moment{&f.filter.CreatedBefore}, "created-before", "only jobs enqueued before")
	must(cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(stateWords, cobra.ShellCompDirectiveNoFileComp)))
}

// read is the filter; nil where nothing was chosen.
func (f *filterFlags) read() (*pb.JobFilter, error) {
	for _, name := range f.states {
		name = strings.TrimPrefix(strings.ToUpper(name), "JOB_STATE_")
		value, is := pb.JobState_value["JOB_STATE_"+name]
		if !is || value == 0 {
			return nil, usage("--state must be one of %s, got %q", strings.Join(stateWords, ", "), name)
		}
		f.filter.States = append(f.filter.States, pb.JobState(value))
	}
	f.filter.Queue, f.filter.Subject, f.filter.ErrorCode = optional(f.queue), optional(f.subject), optional(f.code)
	if proto.Size(&f.filter) == 0 {
		return nil, nil
	}
	return &f.filter, nil
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func newJobsList(h Host) *cobra.Command {
	var f filterFlags
	var limit int
	var full bool
	cmd := &cobra.Command{Use: "list", Short: "List jobs, oldest first", Args: cobra.NoArgs}
	f.add(cmd)
	cmd.Flags().IntVar(&limit, "limit", 50, "how many at most; 0: all")
	cmd.Flags().BoolVar(&full, "full", false, "payloads, headers, results and checkpoints as well (json, yaml)")
	return h.command(cmd, func(ctx context.Context, s *session, _ []string) error {
		filter, err := f.read()
		if err != nil {
			return err
		}
		req := &pb.ListJobsRequest{Filter: filter}
		if full {
			req.View = pb.JobView_JOB_VIEW_FULL
		}
		all, more, err := pages(limit, func(size int32, token string) ([]*pb.Job, string, error) {
			req.PageSize, req.PageToken = &size, token
			resp, err := s.jobs.ListJobs(ctx, req)
			return resp.GetJobs(), resp.GetNextPageToken(), err
		})
		if err != nil {
			return err
		}
		if !s.people() {
			return s.message(&pb.ListJobsResponse{Jobs: all})
		}
		return s.listed(s.jobRows(all), jobHeader, len(all), more)
	})
}

// pages reads up to limit entries page by page, all where it is 0, and tells whether there
// are more.
func pages[T any](limit int, next func(size int32, token string) ([]T, string, error)) (all []T, more bool, err error) {
	if limit < 0 {
		return nil, false, usage("--limit must be 0 or more, got %d", limit)
	}
	for token := ""; ; {
		size := maxPage
		if limit > 0 {
			size = min(size, limit-len(all))
		}
		page, following, err := next(int32(size), token)
		if err != nil {
			return nil, false, err
		}
		all, token = append(all, page...), following
		if token == "" || limit > 0 && len(all) >= limit {
			return all, token != "", nil
		}
	}
}

// listed writes a list for people.
func (p *printer) listed(rows [][]string, header []string, n int, more bool) error {
	if n == 0 {
		p.note("none")
		return nil
	}
	if err := p.table(header, rows); err != nil {
		return err
	}
	if more {
		p.note("the first %d; --limit 0 shows all", n)
	}
	return nil
}

var jobHeader = []string{"job", "queue", "state", "subject", "attempts", "owner", "stage", "enqueued", "next"}

func (p *printer) jobRows(jobs []*pb.Job) [][]string {
	rows := make([][]string, len(jobs))
	for i, j := range jobs {
		next := ""
		switch j.GetState() {
		case pb.JobState_JOB_STATE_PENDING:
			next = "due " + relative(p.now, j.GetRunAt())
		case pb.JobState_JOB_STATE_PROCESSING:
			next = "lease ends " + relative(p.now, j.GetLeaseUntil())
		default:
			next = relative(p.now, j.GetFinishedAt())
		}
		if e := j.GetLastError().GetCode(); e != "" {
			next += " (" + cut(e, 30) + ")"
		}
		rows[i] = []string{
			j.GetJobId(), clean(j.GetQueue()), p.state(upper(j.GetState(), "JOB_STATE_")), cut(j.GetSubject(), 40), attempts(j),
			cut(j.GetLeaseOwner(), 30), cut(j.GetStage(), 30), relative(p.now, j.GetCreatedAt()), next,
		}
	}
	return rows
}

func attempts(j *pb.Job) string {
	return number(j.GetAttemptsUsed()) + " of " + number(j.GetPolicy().GetMaxAttempts())
}
