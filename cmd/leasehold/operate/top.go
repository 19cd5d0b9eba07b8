package operate

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

func newTop(h Host) *cobra.Command {
	var interval time.Duration
	var count, jobs int
	cmd := &cobra.Command{
		Use: "top", Short: "Watch the queues, what is being worked on, and what is stuck", Args: cobra.NoArgs,
		Long: "top shows the queues, the oldest jobs that are being worked on and those that need a look,\n" +
			"and draws it again each --interval until Ctrl-C. Elsewhere than on a terminal it shows it\n" +
			"once. A service that is away for a while is waited for.",
	}
	cmd.Flags().DurationVar(&interval, "interval", 2*time.Second, "time between two looks, 200ms..1h")
	cmd.Flags().IntVar(&count, "count", 0, "how often to look; 0: until Ctrl-C, or once where there is no terminal")
	cmd.Flags().IntVar(&jobs, "jobs", 10, "how many jobs of each list, 0..100")
	return h.command(cmd, func(ctx context.Context, s *session, _ []string) error {
		switch {
		case interval < 200*time.Millisecond || interval > time.Hour:
			return usage("--interval must be 200ms..1h, got %v", interval)
		case jobs < 0 || jobs > 100 || count < 0:
			return usage("--jobs must be 0..100 and --count 0 or more")
		}
		if count == 0 && !s.live {
			count = 1
		}
		ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
		defer stop()
		return s.top(ctx, interval, count, jobs)
	})
}

// top looks until count or the end of ctx, which is no fault.
func (s *session) top(ctx context.Context, interval time.Duration, count, jobs int) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for n := 1; ; n++ {
		v, err := s.view(ctx, jobs)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && count > 0 && n >= count:
			return err
		case !s.people():
			if err == nil {
				err = s.value(v)
			}
			if err != nil {
				return err
			}
		default:
			if err := s.draw(v, err); err != nil {
				return err
			}
		}
		if count > 0 && n >= count {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// view is one look.
type view struct {
	queues  *pb.ListQueuesResponse
	running []*pb.Job
	stuck   []*pb.StuckJob
}

// MarshalJSON is json.Marshaler.
func (v *view) MarshalJSON() ([]byte, error) {
	queues, err := marshal(v.queues)
	if err != nil {
		return nil, err
	}
	running, err := marshal(&pb.ListJobsResponse{Jobs: v.running})
	if err != nil {
		return nil, err
	}
	stuck, err := marshal(&pb.ListStuckResponse{Jobs: v.stuck})
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, `{"queues":%s,"processing":%s,"stuck":%s}`, queues, running, stuck), nil
}

func (s *session) view(ctx context.Context, jobs int) (*view, error) {
	s.now = time.Now()
	queues, _, err := s.allQueues(ctx, 0)
	v := &view{queues: queues}
	if err != nil || jobs == 0 {
		return v, err
	}
	size := int32(jobs)
	running, err := s.jobs.ListJobs(ctx, &pb.ListJobsRequest{
		Filter: &pb.JobFilter{States: []pb.JobState{pb.JobState_JOB_STATE_PROCESSING}}, PageSize: &size,
	})
	if err != nil {
		return v, err
	}
	stuck, err := s.leases.ListStuck(ctx, &pb.ListStuckRequest{PageSize: &size})
	v.running, v.stuck = running.GetJobs(), stuck.GetJobs()
	return v, err
}

// draw shows one look, over the one before it on a terminal.
func (s *session) draw(v *view, fault error) error {
	var b strings.Builder
	if s.live {
		b.WriteString("\x1b[H\x1b[2J")
	}
	fmt.Fprintf(&b, "%s\n\n", s.paint(faint, "leasehold top, "+s.now.Format("15:04:05")))
	if fault != nil {
		fmt.Fprintf(&b, "%s\n", s.paint(bad, fault.Error()))
		return s.write(b.String())
	}
	b.WriteString(s.tableText(queueHeader, s.queueRows(v.queues)))
	if len(v.running) > 0 {
		fmt.Fprintf(&b, "\n%s\n%s", s.paint(bold, "oldest being worked on"), s.tableText(runningHeader, s.runningRows(v.running)))
	}
	if len(v.stuck) > 0 {
		rows := make([][]string, len(v.stuck))
		for i, j := range v.stuck {
			rows[i] = []string{j.GetJobId(), clean(j.GetQueue()), s.paint(bad, upper(j.GetDiagnosis(), "DIAGNOSIS_")), relative(s.now, j.GetSince()), cut(j.GetSubject(), 40)}
		}
		fmt.Fprintf(&b, "\n%s\n%s", s.paint(bold, "need a look (leasehold stuck)"), s.tableText([]string{"job", "queue", "diagnosis", "since", "subject"}, rows))
	}
	return s.write(b.String())
}

var runningHeader = []string{"job", "queue", "owner", "stage", "progress", "lease ends"}

func (p *printer) runningRows(jobs []*pb.Job) [][]string {
	rows := make([][]string, len(jobs))
	for i, j := range jobs {
		progress := ""
		if j.Progress != nil {
			progress = fmt.Sprintf("%.0f %%", 100*j.GetProgress())
		}
		rows[i] = []string{j.GetJobId(), clean(j.GetQueue()), cut(j.GetLeaseOwner(), 30), cut(j.GetStage(), 30), progress, relative(p.now, j.GetLeaseUntil())}
	}
	return rows
}
