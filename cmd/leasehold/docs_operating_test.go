package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/internal/doctest"
)

const operatingGuide = "docs/operating.md"

// recordSessions makes the test write the sessions anew instead of comparing them.
const recordSessions = "LEASEHOLD_RECORD_SESSIONS"

// TestOperatingGuideIsRecorded runs the sessions of the guide in a system in which that has
// happened of which it tells.
func TestOperatingGuideIsRecorded(t *testing.T) {
	t.Parallel()
	o := operateOne(t)
	o.makeIncident()
	var outputs []string
	for _, e := range doctest.Read(t, operatingGuide).Examples("sh") {
		if e.Answer == nil {
			t.Fatalf("%s:%d has no answer", operatingGuide, e.Line)
		}
		got := o.shell(e.Text)
		outputs = append(outputs, got)
		if want := e.Answer.Text; os.Getenv(recordSessions) == "" && masked(want) != masked(got) {
			t.Errorf("%s:%d: it says\n%s\nand the guide\n%s\n(%s=1 records it anew)", operatingGuide, e.Line, got, want, recordSessions)
		}
	}
	if os.Getenv(recordSessions) != "" {
		record(t, outputs)
	}
}

// makeIncident: three payments whose worker crashed in the middle and are held, one that a worker
// still has, eight that the provider refused for now, and one that nobody took.
func (o *operated) makeIncident() {
	o.Helper()
	o.run(0, "queues", "create", "payments", "--on-expiry", "hold", "--backoff-initial", "12h", "--backoff-jitter", "0")
	o.run(0, "queues", "create", "exports")
	o.enqueue("payments", 13)
	crashed := o.acquire("payments", "payments-v42/1", 3, 5*time.Second)
	for _, stage := range []string{"validate", "psp_call"} {
		beats := &pb.BatchHeartbeatRequest{}
		for _, lease := range crashed {
			beats.Items = append(beats.Items, &pb.HeartbeatRequest{LeaseToken: lease.GetLeaseToken(), Stage: proto.String(stage)})
		}
		resp, err := o.leases.BatchHeartbeat(o.Context(), beats)
		o.must(err)
		for _, r := range resp.GetResults() {
			if r.GetError() != nil {
				o.Fatal(r.GetError())
			}
		}
	}
	o.failAll(o.acquire("payments", "payments-v41/1", 8, time.Hour))
	o.acquire("payments", "payments-v41/1", 1, time.Hour)
	for _, lease := range crashed {
		o.awaitState(lease.GetJob().GetJobId(), pb.JobState_JOB_STATE_STUCK)
	}
}

// shell runs a session and returns what a person sees of it.
func (o *operated) shell(script string) string {
	o.Helper()
	cmd := exec.CommandContext(o.Context(), "sh", "-c", script)
	cmd.Env = append(cleanEnv(), "PATH="+filepath.Dir(binary)+":"+os.Getenv("PATH"),
		"LEASEHOLD_ADDRESS="+o.address, "LEASEHOLD_OUTPUT=table", "LEASEHOLD_ACTOR=ann")
	said, err := cmd.CombinedOutput()
	if err != nil {
		o.Fatalf("%s: %v\n%s", script, err, said)
	}
	return string(said)
}

// masked takes out of an output what is different in each run: times, and what is drawn to
// their scale.
func masked(text string) string {
	text = regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d`).ReplaceAllString(text, "TIME")
	text = regexp.MustCompile(`[·━●╍]+`).ReplaceAllString(text, "BAR")
	text = regexp.MustCompile(`\b\d+(\.\d+)?(ms|s|m|h|d)(\d+(s|m|h))?\b( ago)?|\bin SPAN\b|\bnow\b`).ReplaceAllString(text, "SPAN")
	return regexp.MustCompile(` +`).ReplaceAllString(text, " ")
}

// record puts outputs into the answers of the guide, in order.
func record(t *testing.T, outputs []string) {
	t.Helper()
	path := filepath.Join(doctest.Root(t), filepath.FromSlash(operatingGuide))
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(string(text), "```text\n")
	for i, out := range outputs {
		_, after, _ := strings.Cut(parts[i+1], "```")
		parts[i+1] = out + "```" + after
	}
	if err := os.WriteFile(path, []byte(strings.Join(parts, "```text\n")), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestOperatingGuideKnowsEachCheck holds its table against the API.
func TestOperatingGuideKnowsEachCheck(t *testing.T) {
	t.Parallel()
	var told, want []string
	for _, row := range doctest.Read(t, operatingGuide).Table(t, "Lint") {
		told = append(told, doctest.Words(row[0])[0])
	}
	for n, name := range pb.LintCheck_name {
		if n != 0 {
			want = append(want, strings.TrimPrefix(name, "LINT_CHECK_"))
		}
	}
	slices.Sort(told)
	slices.Sort(want)
	if !slices.Equal(told, want) {
		t.Errorf("the guide has the checks %v, the API %v", told, want)
	}
}
