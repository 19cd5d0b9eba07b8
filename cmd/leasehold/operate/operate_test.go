package operate

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

func TestCleanLeavesNothingThatMovesATerminal(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"payments-7f9c/1": "payments-7f9c/1",
		"Grüße, 世界":       "Grüße, 世界",
		"a\x1b[2Jb":       `a\x1b[2Jb`,
		"a\r\nb\tc":       `a\r\nb\tc`,
		"a\u202eb\u200bc": `a\u202eb\u200bc`,
		"a\x00b\u009bc":   `a\x00b\u009bc`,
		"a\xffb":          `a�b`,
	} {
		if got := clean(text); got != want && text != "a\xffb" {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
		if got := clean(text); strings.ContainsAny(got, "\x1b\r\n\t\x00\u202e\u009b") {
			t.Errorf("%q: got %q", text, got)
		}
	}
	if got := cut(strings.Repeat("ä", 50), 10); got != strings.Repeat("ä", 9)+"…" {
		t.Errorf("cut: %q", got)
	}
	if got := cutBytes("aä", 2); got != "a" {
		t.Errorf("cutBytes: %q", got)
	}
}

func TestTimesForPeople(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0: "0s", 12 * time.Millisecond: "12ms", time.Nanosecond: "1ms", 1500 * time.Millisecond: "1.5s", 90 * time.Second: "90s",
		125 * time.Second: "2m5s", 3 * time.Hour: "3h", 26*time.Hour + 30*time.Minute: "26h30m", 50 * time.Hour: "2d2h", -time.Minute: "-60s",
	} {
		if got := length(d); got != want {
			t.Errorf("%v: got %q, want %q", d, got, want)
		}
	}
	now := time.Unix(1_000_000, 0)
	for d, want := range map[time.Duration]string{0: "now", -3 * time.Minute: "3m ago", time.Hour: "in 60m"} {
		if got := relative(now, timestamppb.New(now.Add(d))); got != want {
			t.Errorf("%v: got %q, want %q", d, got, want)
		}
	}
	for text, want := range map[string]time.Duration{"7d": 7 * 24 * time.Hour, "1d12h": 36 * time.Hour, "90s": 90 * time.Second} {
		if got, err := parseSpan(text); err != nil || got != want {
			t.Errorf("%q: got %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "d", "-1d", "1x", "99999999d", "1d1"} {
		if got, err := parseSpan(text); err == nil {
			t.Errorf("%q is taken for %v", text, got)
		}
	}
	if got := number(1234567); got != "1,234,567" {
		t.Errorf("number: %q", got)
	}
}

func TestSizes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{"1": 1, "512KiB": 512 << 10, "100GiB": 100 << 30, "2TiB": 2 << 40} {
		var n int64
		if err := (size{&n}).Set(text); err != nil || n != want {
			t.Errorf("%q: %d, %v", text, n, err)
		}
	}
	for _, text := range []string{"", "0", "-1GiB", "GiB", "9999999999TiB", "1.5GiB", "1GB"} {
		var n int64
		if err := (size{&n}).Set(text); err == nil {
			t.Errorf("%q is taken for %d", text, n)
		}
	}
}

// TestBarsStayInTheirRoom: times out of order, as a clock that was set gives them, must not
// break the drawing of what people look at in trouble.
func TestBarsStayInTheirRoom(t *testing.T) {
	t.Parallel()
	at := func(s int) *timestamppb.Timestamp { return timestamppb.New(time.Unix(int64(1_000_000+s), 0)) }
	var out bytes.Buffer
	p := &printer{out: &out, format: formatTable, now: time.Unix(1_000_050, 0)}
	leases := []*pb.LeaseRecord{
		{
			LeaseNo: 1, LeaseOwner: "a/1", LeasedAt: at(0), EndedAt: at(10), End: pb.LeaseEnd_LEASE_END_EXPIRED,
			Stages:    []*pb.StageChange{{At: at(-5), Stage: "early"}, {At: at(4000), Stage: "late"}},
			LateCalls: &pb.LateCalls{Count: 2, LastAt: at(30), LastCall: "Complete", LateBy: durationpb.New(20 * time.Second)},
		},
		{LeaseNo: 2, LeaseOwner: "b/1", LeasedAt: at(20), EndedAt: at(15), End: pb.LeaseEnd_LEASE_END_FAILED},
		{LeaseNo: 3, LeaseOwner: "c/1", LeasedAt: at(100)},
	}
	text := p.timeline(&pb.Job{LeaseNo: 5}, leases)
	for _, want := range []string{"the latest 3 of 5", "late  ← stopped here", "double run: its holder made 2 calls", "the last Complete, 20s after its own end", "LIVE"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	for _, l := range leases {
		if bar := []rune(p.bar(p.axisOf(leases), l)); len(bar) != barWidth {
			t.Errorf("the bar of lease %d has %d columns: %s", l.GetLeaseNo(), len(bar), string(bar))
		}
	}
}

func TestManyStagesAreShortened(t *testing.T) {
	t.Parallel()
	l := &pb.LeaseRecord{LeaseNo: 1, LeasedAt: timestamppb.Now(), End: pb.LeaseEnd_LEASE_END_STALLED}
	for range 1000 {
		l.Stages = append(l.Stages, &pb.StageChange{At: timestamppb.Now(), Stage: "part"})
	}
	l.Stages[999].Stage = "the last one"
	text := (&printer{now: time.Now()}).timeline(&pb.Job{LeaseNo: 1}, []*pb.LeaseRecord{l})
	if n := strings.Count(text, "\n"); n > shownStages+5 || !strings.Contains(text, "… 988 more stages") || !strings.Contains(text, "the last one") {
		t.Errorf("%d lines:\n%s", n, text)
	}
}

// TestColorIsForTerminals: neither a file nor NO_COLOR gets escape sequences.
func TestColorIsForTerminals(t *testing.T) {
	t.Parallel()
	env := func(string) (string, bool) { return "", false }
	p, err := newPrinter(Host{Out: &bytes.Buffer{}, Err: &bytes.Buffer{}, Env: env}, formatTable)
	if err != nil || p.color || p.live || p.state("STUCK") != "STUCK" {
		t.Errorf("%+v, %v", p, err)
	}
	p.color = true
	if got := p.tableText([]string{"a", "b"}, [][]string{{p.state("STUCK"), "x"}, {"COMPLETED", "y"}}); !strings.Contains(got, "\x1b[31mSTUCK\x1b[0m      x") {
		t.Errorf("colour breaks the columns: %q", got)
	}
}

func TestMachinesGetZeros(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := &printer{out: &out, format: formatJSON}
	if err := p.message(&pb.ListQueuesResponse{Stats: []*pb.QueueStats{{Queue: "q"}}}); err != nil {
		t.Fatal(err)
	}
	var got struct{ Stats []map[string]any }
	if err := json.Unmarshal(out.Bytes(), &got); err != nil || got.Stats[0]["stuck"] != "0" {
		t.Errorf("%s, %v", out.String(), err)
	}
}
