package operate

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

func newQueues(h Host) *cobra.Command {
	return group("queues", "List, look at and change queues",
		newQueuesList(h), newQueuesGet(h), newQueuesCreate(h), newQueuesSet(h), newPause(h), newResume(h), newQueuesDelete(h))
}

func newQueuesList(h Host) *cobra.Command {
	var limit int
	cmd := &cobra.Command{Use: "list", Short: "List queues, with what waits in them", Args: cobra.NoArgs}
	cmd.Flags().IntVar(&limit, "limit", 0, "how many at most; 0: all")
	return h.command(cmd, func(ctx context.Context, s *session, _ []string) error {
		resp, more, err := s.allQueues(ctx, limit)
		if err != nil {
			return err
		}
		if !s.people() {
			return s.message(resp)
		}
		return s.listed(s.queueRows(resp), queueHeader, len(resp.GetQueues()), more)
	})
}

func (s *session) allQueues(ctx context.Context, limit int) (*pb.ListQueuesResponse, bool, error) {
	out := &pb.ListQueuesResponse{}
	queues, more, err := pages(limit, func(size int32, token string) ([]*pb.Queue, string, error) {
		resp, err := s.queues.ListQueues(ctx, &pb.ListQueuesRequest{PageSize: &size, PageToken: token, WithStats: true})
		out.Stats = append(out.Stats, resp.GetStats()...)
		return resp.GetQueues(), resp.GetNextPageToken(), err
	})
	out.Queues = queues
	return out, more, err
}

var queueHeader = []string{"queue", "ready", "oldest", "scheduled", "processing", "stuck", "dead", "on expiry", "paused"}

// queueRows has no numbers where an older service gave none.
func (p *printer) queueRows(resp *pb.ListQueuesResponse) [][]string {
	rows := make([][]string, len(resp.GetQueues()))
	for i, q := range resp.GetQueues() {
		row := []string{clean(q.GetName()), "?", "", "?", "?", "?", "?", expiryText(q), ""}
		if len(resp.GetStats()) == len(rows) {
			st := resp.GetStats()[i]
			oldest := ""
			if st.GetOldestReadyAge() != nil {
				oldest = length(st.GetOldestReadyAge().AsDuration())
			}
			copy(row[1:], []string{capped(st.GetReady()), oldest, capped(st.GetScheduled()), p.nonZero(busy, st.GetProcessing()),
				p.nonZero(bad, st.GetStuck()), p.nonZero(bad, st.GetDead())})
		}
		if q.GetPaused() {
			row[8] = p.paint(warn, pausedText(p, q))
		}
		rows[i] = row
	}
	return rows
}

func pausedText(p *printer, q *pb.Queue) string {
	text := relative(p.now, q.GetPausedAt())
	if q.GetPausedBy() != "" {
		text += " by " + cut(q.GetPausedBy(), 40)
	}
	if q.GetPauseNote() != "" {
		text += ": " + cut(q.GetPauseNote(), 60)
	}
	return text
}

// capped is a count that stops at 10,000.
func capped(n int64) string {
	if n >= 10_000 {
		return "10,000+"
	}
	return number(n)
}

func (p *printer) nonZero(color string, n int64) string {
	if n == 0 {
		return "0"
	}
	return p.paint(color, capped(n))
}

func newQueuesGet(h Host) *cobra.Command {
	cmd := &cobra.Command{Use: "get QUEUE", Short: "Show a queue: its policy and what waits in it", Args: cobra.ExactArgs(1)}
	return h.command(cmd, func(ctx context.Context, s *session, args []string) error {
		resp, err := s.queues.GetQueue(ctx, &pb.GetQueueRequest{Name: args[0], WithStats: true})
		if err != nil {
			return err
		}
		if !s.people() {
			return s.message(resp)
		}
		return s.queue(resp.GetQueue(), resp.GetStats())
	})
}

// queue shows one queue, with the settings that somebody chose.
func (p *printer) queue(q *pb.Queue, stats *pb.QueueStats) error {
	pairs := []string{"queue", clean(q.GetName())}
	if stats != nil {
		pairs = append(pairs, "jobs", fmt.Sprintf("%s ready, %s scheduled, %s processing, %s stuck, %s dead", capped(stats.GetReady()),
			capped(stats.GetScheduled()), capped(stats.GetProcessing()), p.nonZero(bad, stats.GetStuck()), p.nonZero(bad, stats.GetDead())))
		if age := stats.GetOldestReadyAge(); age != nil {
			pairs = append(pairs, "oldest", "ready for "+length(age.AsDuration()))
		}
	}
	if q.GetPaused() {
		pairs = append(pairs, "paused", p.paint(warn, pausedText(p, q)))
	}
	pairs = append(pairs, "on-expiry", expiryText(q))
	if q.GetStallEndsLease() {
		pairs = append(pairs, "stall-ends-lease", "true")
	}
	chosen := len(pairs)
	for _, f := range policyFlags(&pb.JobPolicy{}) {
		if value := f.get(q.GetPolicy()); value != "" {
			pairs = append(pairs, f.name, value)
		}
	}
	if len(pairs) == chosen {
		pairs = append(pairs, "policy", "defaults")
	}
	return p.fields(pairs...)
}

func expiryText(q *pb.Queue) string {
	if q.GetOnExpiry() == pb.OnExpiry_ON_EXPIRY_UNSPECIFIED {
		return "requeue (not chosen)"
	}
	return word(q.GetOnExpiry(), "ON_EXPIRY_")
}

// policyFlag is one setting of a queue: its flag, its path in the API, and how it reads.
type policyFlag struct {
	name, path, help string
	value            pflag.Value
	get              func(*pb.JobPolicy) string
}

// policyFlags are the settings of a policy, bound to p.
func policyFlags(p *pb.JobPolicy) []policyFlag {
	if p.Backoff == nil {
		p.Backoff = &pb.Backoff{}
	}
	b := p.Backoff
	return []policyFlag{
		{"lease-duration", "policy.lease_duration", "length of a lease, 1s..12h", span{&p.LeaseDuration}, func(p *pb.JobPolicy) string { return durationText(p.GetLeaseDuration()) }},
		{"max-attempts", "policy.max_attempts", "attempts before a job is DEAD, 1..1000", count{&p.MaxAttempts}, func(p *pb.JobPolicy) string {
			return optionalText(p.GetMaxAttempts(), p != nil && p.MaxAttempts != nil)
		}},
		{"max-expirations", "policy.max_expirations", "expiries in a row before a job is STUCK, 1..1000", count{&p.MaxExpirations}, func(p *pb.JobPolicy) string {
			return optionalText(p.GetMaxExpirations(), p != nil && p.MaxExpirations != nil)
		}},
		{"max-runtime", "policy.max_runtime", "longest time of a lease from its start, 1s..30d", span{&p.MaxRuntime}, func(p *pb.JobPolicy) string { return durationText(p.GetMaxRuntime()) }},
		{"stall-timeout", "policy.stall_timeout", "longest time without a change of stage, progress or checkpoint, 1s..30d", span{&p.StallTimeout}, func(p *pb.JobPolicy) string { return durationText(p.GetStallTimeout()) }},
		{"cancel-grace", "policy.cancel_grace", "how long a lease is renewed after a cancel, 0..1d", span{&p.CancelGrace}, func(p *pb.JobPolicy) string { return durationText(p.GetCancelGrace()) }},
		{"backoff-initial", "policy.backoff.initial", "wait after the first failure, 0..1d", span{&b.Initial}, func(p *pb.JobPolicy) string { return durationText(p.GetBackoff().GetInitial()) }},
		{"backoff-factor", "policy.backoff.factor", "growth of the wait, 1..10", ratio{&b.Factor}, func(p *pb.JobPolicy) string {
			return optionalText(p.GetBackoff().GetFactor(), p.GetBackoff() != nil && p.GetBackoff().Factor != nil)
		}},
		{"backoff-cap", "policy.backoff.cap", "longest wait, 0..30d", span{&b.Cap}, func(p *pb.JobPolicy) string { return durationText(p.GetBackoff().GetCap()) }},
		{"backoff-jitter", "policy.backoff.jitter", "share of the wait that is random, 0..1", ratio{&b.Jitter}, func(p *pb.JobPolicy) string {
			return optionalText(p.GetBackoff().GetJitter(), p.GetBackoff() != nil && p.GetBackoff().Jitter != nil)
		}},
		{"idempotency-retention", "policy.idempotency_retention", "how long keys outlive their jobs, 0..366d", span{&p.IdempotencyRetention}, func(p *pb.JobPolicy) string { return durationText(p.GetIdempotencyRetention()) }},
	}
}

func durationText(d *durationpb.Duration) string {
	if d == nil {
		return ""
	}
	return length(d.AsDuration())
}

func optionalText(value any, set bool) string {
	if !set {
		return ""
	}
	return fmt.Sprint(value)
}

// queueFlags are those of create and set.
type queueFlags struct {
	policy   *pb.JobPolicy
	fields   []policyFlag
	onExpiry string
	stall    bool
	unset    []string
}

func (q *queueFlags) add(cmd *cobra.Command) {
	q.policy = &pb.JobPolicy{}
	q.fields = policyFlags(q.policy)
	for _, f := range q.fields {
		cmd.Flags().Var(f.value, f.name, f.help)
	}
	cmd.Flags().StringVar(&q.onExpiry, "on-expiry", "", "what becomes of a job whose lease ran out: requeue or hold")
	cmd.Flags().BoolVar(&q.stall, "stall-ends-lease", false, "stall_timeout ends the lease instead of only being reported")
	must(cmd.RegisterFlagCompletionFunc("on-expiry", cobra.FixedCompletions([]string{"requeue", "hold"}, cobra.ShellCompDirectiveNoFileComp)))
}

// queue is the queue as the flags describe it.
func (q *queueFlags) queue(name string) (*pb.Queue, error) {
	out := &pb.Queue{Name: name, Policy: q.policy, StallEndsLease: q.stall}
	switch q.onExpiry {
	case "":
	case "requeue":
		out.OnExpiry = pb.OnExpiry_ON_EXPIRY_REQUEUE
	case "hold":
		out.OnExpiry = pb.OnExpiry_ON_EXPIRY_HOLD
	default:
		return nil, usage("--on-expiry must be requeue or hold, got %q", q.onExpiry)
	}
	return out, nil
}

// mask names the fields that were given, and those to set back.
func (q *queueFlags) mask(flags *pflag.FlagSet) (*fieldmaskpb.FieldMask, error) {
	mask := &fieldmaskpb.FieldMask{}
	paths := map[string]string{"on-expiry": "on_expiry", "stall-ends-lease": "stall_ends_lease"}
	for _, f := range q.fields {
		paths[f.name] = f.path
	}
	for name, path := range paths {
		if flags.Changed(name) {
			mask.Paths = append(mask.Paths, path)
		}
	}
	for _, name := range q.unset {
		path, is := paths[name]
		if !is || flags.Changed(name) {
			return nil, usage("--unset takes the name of a flag that is not given as well, got %q", name)
		}
		mask.Paths = append(mask.Paths, path)
	}
	if len(mask.GetPaths()) == 0 {
		return nil, usage("say what to change, as --lease-duration 2m or --unset max-runtime")
	}
	slices.Sort(mask.GetPaths())
	return mask, nil
}

func newQueuesCreate(h Host) *cobra.Command {
	q := &queueFlags{}
	cmd := &cobra.Command{Use: "create QUEUE", Short: "Make a queue", Args: cobra.ExactArgs(1)}
	q.add(cmd)
	return h.command(cmd, func(ctx context.Context, s *session, args []string) error {
		queue, err := q.queue(args[0])
		if err != nil {
			return err
		}
		resp, err := s.queues.CreateQueue(ctx, &pb.CreateQueueRequest{Queue: queue})
		return s.changed(resp.GetQueue(), err, resp)
	})
}

func newQueuesSet(h Host) *cobra.Command {
	q := &queueFlags{}
	cmd := &cobra.Command{
		Use: "set QUEUE", Short: "Change a queue", Args: cobra.ExactArgs(1),
		Long: "set changes what its flags name and leaves the rest. Jobs that are already there keep the\n" +
			"policy that they were enqueued with; --on-expiry and --stall-ends-lease act at once.",
	}
	q.add(cmd)
	cmd.Flags().StringSliceVar(&q.unset, "unset", nil, "set back to the default, by the names of the flags")
	return h.command(cmd, func(ctx context.Context, s *session, args []string) error {
		queue, err := q.queue(args[0])
		if err != nil {
			return err
		}
		mask, err := q.mask(cmd.Flags())
		if err != nil {
			return err
		}
		resp, err := s.queues.UpdateQueue(ctx, &pb.UpdateQueueRequest{Queue: queue, UpdateMask: mask})
		return s.changed(resp.GetQueue(), err, resp)
	})
}

func newPause(h Host) *cobra.Command {
	var note string
	cmd := &cobra.Command{Use: "pause QUEUE", Short: "Let no job of a queue be leased until it is resumed; running ones go on", Args: cobra.ExactArgs(1)}
	cmd.Flags().StringVar(&note, "note", "", "why, for the record")
	return h.command(cmd, func(ctx context.Context, s *session, args []string) error {
		resp, err := s.queues.PauseQueue(ctx, &pb.PauseQueueRequest{Name: args[0], Actor: s.actor, Note: note})
		return s.changed(resp.GetQueue(), err, resp)
	})
}

func newResume(h Host) *cobra.Command {
	cmd := &cobra.Command{Use: "resume QUEUE", Short: "End a pause", Args: cobra.ExactArgs(1)}
	return h.command(cmd, func(ctx context.Context, s *session, args []string) error {
		resp, err := s.queues.ResumeQueue(ctx, &pb.ResumeQueueRequest{Name: args[0]})
		return s.changed(resp.GetQueue(), err, resp)
	})
}

func newQueuesDelete(h Host) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{Use: "delete QUEUE", Short: "Remove a queue that has no live job; its history stays", Args: cobra.ExactArgs(1)}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return h.command(cmd, func(ctx context.Context, s *session, args []string) error {
		if err := s.ask(yes, "This deletes the queue %s.", clean(args[0])); err != nil {
			return err
		}
		resp, err := s.queues.DeleteQueue(ctx, &pb.DeleteQueueRequest{Name: args[0]})
		if err != nil {
			return err
		}
		if !s.people() {
			return s.message(resp)
		}
		return s.say("deleted %s", clean(args[0]))
	})
}
