package operate

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

func newJobsGet(h Host) *cobra.Command {
	var queue, key string
	var why, full bool
	var leases int32
	cmd := &cobra.Command{
		Use: "get [JOB]", Short: "Tell the story of one job: its leases, where they stopped, and who acted on it", Args: cobra.MaximumNArgs(1),
		Long: "get tells the story of one job. Each lease has a line with its time, owner and end, a bar\n" +
			"on the time of the job (━ leased, ● a change of stage, ╍ its holder went on after its end)\n" +
			"and its stages; the last stage is where it stopped.",
	}
	cmd.Flags().StringVar(&queue, "queue", "", "with --key: the queue")
	cmd.Flags().StringVar(&key, "key", "", "find the job by its idempotency key instead of its id")
	cmd.Flags().BoolVar(&why, "why", false, "say why it is not running now")
	cmd.Flags().BoolVar(&full, "full", false, "payload, headers, result and checkpoint as well")
	cmd.Flags().Int32Var(&leases, "leases", 20, "how many of the latest leases to show, 0..100")
	return h.command(cmd, func(ctx context.Context, s *session, args []string) error {
		req := &pb.GetJobRequest{RecentLeases: &leases, Explain: why}
		switch {
		case len(args) == 1 && key == "":
			req.By = &pb.GetJobRequest_JobId{JobId: args[0]}
		case len(args) == 0 && key != "" && queue != "":
			req.By = &pb.GetJobRequest_Key{Key: &pb.JobKey{Queue: queue, IdempotencyKey: key}}
		default:
			return usage("name the job: its id, or --queue and --key")
		}
		if full {
			req.View = pb.JobView_JOB_VIEW_FULL
		}
		resp, err := s.jobs.GetJob(ctx, req)
		if err != nil {
			return err
		}
		if why && resp.GetExplanation() == nil {
			return failed("the service does not explain jobs: it is older than this command")
		}
		if !s.people() {
			return s.message(resp)
		}
		return s.story(resp)
	})
}

// story draws one job.
func (p *printer) story(resp *pb.GetJobResponse) error {
	if e := resp.GetExplanation(); e != nil {
		p.now = e.GetAsOf().AsTime() // the clock that the times are of
	}
	if err := p.head(resp.GetJob()); err != nil {
		return err
	}
	if e := resp.GetExplanation(); e != nil {
		texts := make([]string, len(e.GetTexts()))
		for i, text := range e.GetTexts() {
			texts[i] = "  " + clean(text)
		}
		if err := p.say("\n%s\n%s", p.paint(bold, "why it is not running now"), strings.Join(texts, "\n")); err != nil {
			return err
		}
	}
	if err := p.write(p.timeline(resp.GetJob(), resp.GetLeases())); err != nil {
		return err
	}
	return p.acts(resp.GetOperatorActs())
}

func (p *printer) head(j *pb.Job) error {
	state := p.state(upper(j.GetState(), "JOB_STATE_"))
	if j.GetCompletedLate() {
		state += ", by a holder whose lease had run out"
	}
	if j.GetStateReason() != "" {
		state += ": " + clean(j.GetStateReason())
	}
	failure := ""
	if e := j.GetLastError(); e != nil {
		failure = cut(e.GetCode(), 128) + " " + cut(e.GetMessage(), 300)
	}
	next := ""
	if j.GetState() == pb.JobState_JOB_STATE_PENDING {
		next = relative(p.now, j.GetRunAt())
	}
	cancel := ""
	if j.GetCancelRequestedAt() != nil {
		cancel = "asked " + relative(p.now, j.GetCancelRequestedAt())
	}
	return p.fields("job", j.GetJobId(), "queue", clean(j.GetQueue()), "state", state,
		"subject", cut(j.GetSubject(), 256), "key", cut(j.GetIdempotencyKey(), 256), "parent", j.GetParentJobId(),
		"attempts", fmt.Sprintf("%s, %s, priority %d", attempts(j), plural(int(j.GetLeaseNo()), "lease"), j.GetPriority()),
		"enqueued", p.moment(j.GetCreatedAt()), "due", next, "finished", p.moment(j.GetFinishedAt()), "cancel", cancel, "last error", failure,
		"payload", content(j.GetPayload()), "result", content(j.GetResult()))
}

// moment is a time with its distance.
func (p *printer) moment(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().Format("2006-01-02 15:04:05") + " UTC, " + relative(p.now, t)
}

func content(c *pb.Payload) string {
	switch data := c.GetContent().(type) {
	case *pb.Payload_Json:
		return cut(data.Json, 2000)
	case *pb.Payload_Data:
		if len(data.Data) > 0 {
			return fmt.Sprintf("%s: %s", plural(len(data.Data), "byte"), cut(string(data.Data), 200))
		}
	}
	return ""
}

// barWidth is the room that the whole life of a job gets.
const barWidth = 48

// axis maps times to the columns of bars.
type axis struct{ from, to time.Time }

func (p *printer) axisOf(leases []*pb.LeaseRecord) axis {
	a := axis{from: leases[0].GetLeasedAt().AsTime()}
	for _, l := range leases {
		a.to = latest(a.to, p.endOf(l), l.GetLateCalls().GetLastAt().AsTime())
	}
	return a
}

func latest(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }

// endOf is when a lease ended; of one that lives, now.
func (p *printer) endOf(l *pb.LeaseRecord) time.Time {
	if l.GetEndedAt() != nil {
		return l.GetEndedAt().AsTime()
	}
	return latest(p.now, l.GetLeasedAt().AsTime())
}

func (a axis) column(t time.Time) int {
	whole := a.to.Sub(a.from)
	if whole <= 0 {
		return 0
	}
	share := float64(t.Sub(a.from)) / float64(whole)
	return min(max(int(share*(barWidth-1)), 0), barWidth-1)
}

// bar draws one lease on the axis of all.
func (p *printer) bar(a axis, l *pb.LeaseRecord) string {
	cells := []rune(strings.Repeat("·", barWidth))
	end := p.endOf(l)
	if late := l.GetLateCalls(); late != nil {
		for i := a.column(end); i <= a.column(late.GetLastAt().AsTime()); i++ {
			cells[i] = '╍'
		}
	}
	for i := a.column(l.GetLeasedAt().AsTime()); i <= a.column(end); i++ {
		cells[i] = '━'
	}
	for _, c := range l.GetStages() {
		cells[a.column(c.GetAt().AsTime())] = '●'
	}
	return string(cells)
}

var endColors = map[pb.LeaseEnd]string{
	pb.LeaseEnd_LEASE_END_COMPLETED: good, pb.LeaseEnd_LEASE_END_COMPLETED_LATE: warn, pb.LeaseEnd_LEASE_END_FAILED: bad,
	pb.LeaseEnd_LEASE_END_FAILED_PERMANENTLY: bad, pb.LeaseEnd_LEASE_END_EXPIRED: bad, pb.LeaseEnd_LEASE_END_OVERRAN: bad,
	pb.LeaseEnd_LEASE_END_STALLED: bad, pb.LeaseEnd_LEASE_END_UNSPECIFIED: busy,
}

func (p *printer) timeline(j *pb.Job, leases []*pb.LeaseRecord) string {
	if len(leases) == 0 {
		return ""
	}
	var b strings.Builder
	title := "leases"
	if hidden := j.GetLeaseNo() - int64(len(leases)); hidden > 0 {
		title += fmt.Sprintf(" (the latest %d of %s)", len(leases), number(j.GetLeaseNo()))
	}
	fmt.Fprintf(&b, "\n%s\n", p.paint(bold, title))
	a := p.axisOf(leases)
	for _, l := range leases {
		p.lease(&b, a, l)
	}
	return b.String()
}

func (p *printer) lease(b *strings.Builder, a axis, l *pb.LeaseRecord) {
	began, end := l.GetLeasedAt().AsTime(), p.endOf(l)
	ended := "LIVE"
	if l.GetEnd() != pb.LeaseEnd_LEASE_END_UNSPECIFIED {
		ended = upper(l.GetEnd(), "LEASE_END_")
	}
	notes := []string{}
	if l.GetCounted() {
		notes = append(notes, "used an attempt")
	}
	if l.GetCancelled() {
		notes = append(notes, "cancelled")
	}
	notes = append(notes, plural(int(l.GetBeats()), "beat"))
	if gap := l.GetLargestGap(); gap != nil {
		notes = append(notes, "largest gap "+length(gap.AsDuration()))
	}
	fmt.Fprintf(b, "#%-3d %s  %s\n", l.GetLeaseNo(), p.paint(endColors[l.GetEnd()], p.bar(a, l)), p.paint(endColors[l.GetEnd()], ended))
	fmt.Fprintf(b, "     %s by %s, %s after %s; %s\n", began.Format("2006-01-02 15:04:05"), cut(l.GetLeaseOwner(), 60),
		strings.ToLower(strings.ReplaceAll(ended, "_", " ")), length(end.Sub(began)), strings.Join(notes, ", "))
	p.stages(b, l, began)
	if e := l.GetError(); e != nil {
		fmt.Fprintf(b, "     %s %s %s\n", p.paint(bad, "error"), cut(e.GetCode(), 128), cut(e.GetMessage(), 200))
	}
	if late := l.GetLateCalls(); late != nil {
		fmt.Fprintf(b, "     %s its holder made %s after the next lease had begun, the last %s, %s after its own end\n",
			p.paint(bad, "double run:"), plural(int(late.GetCount()), "call"), clean(late.GetLastCall()), length(late.GetLateBy().AsDuration()))
	}
	if ids := l.GetThenEnqueueJobIds(); len(ids) > 0 {
		fmt.Fprintf(b, "     enqueued %s\n", strings.Join(ids, ", "))
	}
}

// shownStages of one lease: the first ones tell the way, the last one where it stopped.
const shownStages = 12

func (p *printer) stages(b *strings.Builder, l *pb.LeaseRecord, began time.Time) {
	stages := l.GetStages()
	for i, c := range stages {
		if hidden := len(stages) - shownStages; hidden > 0 && i >= shownStages-1 && i < len(stages)-1 {
			if i == shownStages-1 {
				fmt.Fprintf(b, "       … %s\n", plural(hidden, "more stage"))
			}
			continue
		}
		mark := ""
		if i == len(stages)-1 && stopped(l.GetEnd()) {
			mark = p.paint(bad, "  ← stopped here")
		}
		fmt.Fprintf(b, "       +%-7s %s%s\n", length(c.GetAt().AsTime().Sub(began)), cut(c.GetStage(), 128), mark)
	}
}

// stopped tells ends that leave work in the middle.
func stopped(end pb.LeaseEnd) bool {
	switch end {
	case pb.LeaseEnd_LEASE_END_UNSPECIFIED, pb.LeaseEnd_LEASE_END_COMPLETED, pb.LeaseEnd_LEASE_END_COMPLETED_LATE, pb.LeaseEnd_LEASE_END_UNDELIVERED:
		return false
	default:
		return true
	}
}

func (p *printer) acts(acts []*pb.OperatorAct) error {
	if len(acts) == 0 {
		return nil
	}
	rows := make([][]string, len(acts))
	for i, a := range acts {
		rows[i] = []string{a.GetAt().AsTime().Format("2006-01-02 15:04:05"), clean(a.GetAct()), cut(a.GetActor(), 60), cut(a.GetNote(), 200)}
	}
	return p.write("\n" + p.paint(bold, "acts") + "\n" + p.tableText([]string{"when", "act", "who", "why"}, rows))
}
