//go:build full

package faulttest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold/leasehold/internal/replica"
	"github.com/leasehold/leasehold/server/servertest/remote"
	"github.com/leasehold/leasehold/store"
)

// skewed is added to Go's package time: a clock that is wrong by some seconds, and from a
// moment on by others, as the environment says. A library that is loaded before a program,
// as libfaketime, does not reach Go programs, which ask the kernel themselves.
const skewed = `package time

import "syscall"

var skewBy, skewStepAt, skewByThen = skewNumber("BY"), skewNumber("STEP_AT"), skewNumber("BY_THEN")

func skewNumber(name string) (n int64) {
	text, _ := syscall.Getenv("FAULTTEST_CLOCK_" + name)
	sign := int64(1)
	for _, c := range text {
		if c == '-' {
			sign = -1
			continue
		}
		n = n*10 + int64(c-'0')
	}
	return sign * n
}

func skewOf(sec int64) int64 {
	if skewStepAt != 0 && sec >= skewStepAt {
		return skewByThen
	}
	return skewBy
}
`

// buildSkewed builds the service with that clock.
func buildSkewed(t *testing.T) string {
	t.Helper()
	root, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	dir, source := t.TempDir(), filepath.Join(strings.TrimSpace(string(root)), "src", "time")
	text, err := os.ReadFile(filepath.Join(source, "time.go"))
	if err != nil {
		t.Fatal(err)
	}
	const now = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	if strings.Count(string(text), now) != 1 {
		t.Fatal("time.Now is not written as this test knows it")
	}
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {
		filepath.Join(source, "time.go"): write("time.go", strings.Replace(string(text), now, now+"\tsec += skewOf(sec)\n", 1)),
		filepath.Join(source, "skew.go"): write("skew.go", skewed),
	}})
	if err != nil {
		t.Fatal(err)
	}
	path, err := replica.Build(t.Context(), dir, "-overlay", write("overlay.json", string(overlay)))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

const (
	clockLease   = 6 * time.Second
	clockWatcher = 500 * time.Millisecond
	clockBackoff = 2 * time.Second
)

// TestClocksOfReplicasDecideNothing: three replicas whose clocks lie minutes apart, one of
// which steps back by an hour, judge leases, waits and due times alike, by the database's
// clock: no lease is lost that beats, none outlives its time, nothing starts before it is due.
func TestClocksOfReplicasDecideNothing(t *testing.T) {
	t.Parallel()
	const n = 24
	binary := buildSkewed(t)
	step := time.Now().Add(4 * clockLease)
	s, conns := newSkewedScene(t, binary, step)
	runAt := time.Now().Add(clockLease)
	s.enqueued(t, s.over(conns[0]), n, store.NewJob{Queue: "now"})
	later := s.enqueued(t, s.over(conns[2]), n, store.NewJob{Queue: "later", RunAt: &runAt})
	var refs []store.LeaseRef
	for i := range 3 {
		refs = append(refs, leased(t, s.over(conns[i]), n/3, store.Acquire{Queues: []string{"now"}, Owner: "w"})...)
	}
	dead, live := refs[:4], refs[4:]
	ctx, stop := context.WithCancel(t.Context())
	var working sync.WaitGroup
	for i := range conns {
		working.Go(func() { s.failThenComplete(ctx, t, conns[i]) })
	}
	s.beatAround(t, conns, live, step.Add(clockLease))
	for _, ref := range dead {
		l := s.records(t, ref.JobID)[0]
		if l.End != store.EndExpired || l.EndedAt.Sub(l.Until) > 2*clockWatcher+5*time.Second {
			t.Errorf("a lease that nobody renewed: %+v", l)
		}
	}
	for i, ref := range live {
		if out, err := completeWith(t, s.over(conns[i%3]), ref, "done"); err != nil || out.Late || ref.LeaseNo != 1 {
			t.Errorf("a lease that was renewed: %+v, %v", out, err)
		}
	}
	s.wantSkew(t, 2, -3510*time.Second)
	eventually(t, "all that was due later is done", func() bool {
		for _, id := range later {
			if s.job(t, id).State != store.Completed {
				return false
			}
		}
		return true
	})
	stop()
	working.Wait()
	for _, id := range later {
		s.wantDueTimes(t, id, runAt)
	}
	s.judge(t)
}

// newSkewedScene starts three replicas: 90 s behind, right, and 90 s ahead until a time at
// which the clock steps back by an hour.
func newSkewedScene(t *testing.T, binary string, step time.Time) (s *scene, conns []*remote.Store) {
	t.Helper()
	s = newScene(t, 0, []store.Queue{queueOf("now", clockLease), queueOf("later", clockLease, func(q *store.Queue) {
		q.Policy.BackoffInitial, q.Policy.BackoffJitter = to(clockBackoff), to(0.0)
	})})
	for i, env := range [][]string{
		{"FAULTTEST_CLOCK_BY=-90"}, nil,
		{"FAULTTEST_CLOCK_BY=90", fmt.Sprint("FAULTTEST_CLOCK_STEP_AT=", step.Unix()), "FAULTTEST_CLOCK_BY_THEN=-3510"},
	} {
		s.fleet.members = append(s.fleet.members, newMember(t, replica.Config{
			DatabaseURL: s.fleet.db.URL, Args: []string{"--watcher-interval", clockWatcher.String()}, Env: env,
			Wrap: []string{"sh", "-c", `shift; exec ` + binary + ` "$@"`, "sh"}, // in the place of the usual binary
		}))
		conns = append(conns, s.remote(t, i))
	}
	s.fleet.db.SetWritable(t, time.Hour, 0)
	s.wantSkew(t, 0, -90*time.Second)
	s.wantSkew(t, 1, 0)
	s.wantSkew(t, 2, 90*time.Second)
	return s, conns
}

var logTime = regexp.MustCompile(`time=(\S+)`)

// wantSkew checks that the clock of a replica is wrong as it should be, by its log.
func (s *scene) wantSkew(t *testing.T, i int, want time.Duration) {
	t.Helper()
	eventually(t, "the clock is wrong as it should be", func() bool {
		_, err := s.remote(t, i).GetQueue(t.Context(), "now") // leaves a line
		if err != nil {
			t.Fatal(err)
		}
		found := logTime.FindAllStringSubmatch(s.fleet.members[i].Log(), -1)
		at, err := time.Parse(time.RFC3339Nano, found[len(found)-1][1])
		if err != nil {
			t.Fatal(err)
		}
		return (time.Until(at) - want).Abs() < 30*time.Second
	})
}

// beatAround renews leases, each time at the next replica, and compares what is answered with
// the row.
func (s *scene) beatAround(t *testing.T, conns []*remote.Store, refs []store.LeaseRef, until time.Time) {
	t.Helper()
	tick := time.NewTicker(clockLease / 3)
	defer tick.Stop()
	for i := 0; time.Now().Before(until); i++ {
		for _, ref := range refs {
			out, err := beatOnce(t, s.over(conns[i%3]), ref)
			if err != nil {
				t.Errorf("heartbeat %d of %v: %v", i, ref, err)
				continue
			}
			row := s.job(t, ref.JobID)
			if row.LeaseUntil == nil || !row.LeaseUntil.Equal(out.Until) || out.Remaining != clockLease {
				t.Errorf("heartbeat %d of %v answers %s more, until %s; the row says %v", i, ref, out.Remaining, out.Until, row.LeaseUntil)
			}
		}
		<-tick.C
	}
}

// failThenComplete takes what comes due, fails it the first time and completes it the second.
func (s *scene) failThenComplete(ctx context.Context, t *testing.T, r *remote.Store) {
	t.Helper()
	by := s.over(r)
	for ctx.Err() == nil {
		out, err := acquire(t, by, store.Acquire{Queues: []string{"later"}, Owner: "w", MaxJobs: 3})
		if err != nil {
			t.Error(err)
		}
		for i := range out.Leases {
			ref := out.Leases[i].Ref()
			if ref.LeaseNo == 1 {
				_, err = failWith(t, by, store.Fail{Lease: ref})
			} else {
				_, err = completeWith(t, by, ref, "done")
			}
			if err != nil {
				t.Error(err)
			}
		}
		linearWait(ctx, 50*time.Millisecond)
	}
}

// wantDueTimes checks when a job that was due at a time, failed once and waited, was leased.
func (s *scene) wantDueTimes(t *testing.T, id store.JobID, runAt time.Time) {
	t.Helper()
	l := s.records(t, id)
	if len(l) != 2 || l[0].LeasedAt.Before(runAt.Truncate(time.Microsecond)) || l[1].LeasedAt.Before(l[0].EndedAt.Add(clockBackoff)) {
		t.Errorf("job %d, due at %s, has the leases %+v", id, runAt, l)
	}
}
