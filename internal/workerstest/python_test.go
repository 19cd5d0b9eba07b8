//go:build workers

package workerstest

import (
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold/leasehold/client"
	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/internal/doctest"
)

// startPython runs a program of testdata on the Python runtime.
func (w *world) startPython(program, queue string, slots int, env ...string) *process {
	w.t.Helper()
	python := filepath.Join(doctest.Root(w.t), "examples", "python")
	command := append([]string{"env", "PYTHONPATH=" + python + ":" + filepath.Join(python, "gen")}, env...)
	command = append(command, filepath.Join(python, ".venv", "bin", "python"), filepath.Join("testdata", program))
	return start(w.t, program, command, w.replica.GRPC(), queue, slots)
}

// enqueueText stores a job whose payload is a JSON string.
func (w *world) enqueueText(queue, text string) string {
	w.t.Helper()
	p, err := client.NewProducer(w.service, client.ProducerConfig{})
	if err != nil {
		w.t.Fatal(err)
	}
	job, err := p.Enqueue(w.t.Context(), client.NewJob{Queue: queue, Payload: client.Payload{Data: []byte(`"` + text + `"`), JSON: true}})
	if err != nil {
		w.t.Fatal(err)
	}
	return job.JobID
}

// firstEnd is how the first lease of a job ended, with the code of its error.
func (w *world) firstEnd(id string) string {
	w.t.Helper()
	return one[string](w, `SELECT coalesce(max(ended_by || ' ' || coalesce(error_code, '')), '') FROM leasehold.all_leases
		WHERE job_id = $1::bigint AND lease_no = 1`, id)
}

// TestPythonHandlers: whatever a handler does, the service is told, and the worker goes on.
func TestPythonHandlers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	queue := w.createQueue("handlers", time.Minute, pb.OnExpiry_ON_EXPIRY_REQUEUE)
	p := w.startPython("handlers.py", queue, 20)
	ids := map[string]string{}
	for kind, want := range map[string]string{
		"resume":     "FAILED ConnectionError",
		"decline":    "FAILED_PERMANENTLY declined",
		"later":      "FAILED busy",
		"not_yet":    "RELEASED ",
		"odd_text":   "FAILED RuntimeError",
		"leave":      "FAILED SystemExit",
		"long_stage": "FAILED ValueError",
		"odd_stage":  "FAILED UnicodeEncodeError",
		"no_json":    "FAILED TypeError",
		"too_large":  "FAILED result_refused",
		"unknown":    "FAILED KeyError",
	} {
		ids[kind] = w.enqueueText(queue, kind)
		eventually(t, "the end of "+kind, func() bool { return w.firstEnd(ids[kind]) != "" })
		if got := w.firstEnd(ids[kind]); got != want {
			t.Errorf("%s ended as %q, want %q", kind, got, want)
		}
	}
	w.awaitState(ids["resume"], "COMPLETED")
	if got, want := one[string](w, `SELECT result FROM leasehold.all_jobs WHERE id = $1::bigint`, ids["resume"]),
		`{"stage": "psp_call", "checkpoint": "half", "attempt": 2}`; got != want {
		t.Errorf("the second lease had %s, want %s", got, want)
	}
	if got := one[float64](w, `SELECT progress FROM leasehold.all_leases WHERE job_id = $1::bigint AND lease_no = 1`, ids["resume"]); got != 0.5 {
		t.Errorf("progress %v", got)
	}
	if ahead := one[bool](w, `SELECT run_at > now() + interval '30 minutes' FROM leasehold.all_jobs WHERE id = $1::bigint`, ids["later"]); !ahead {
		t.Error("retry_after was not heard")
	}
	p.drain()
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestPythonCancel: a request to cancel passes through "except Exception".
func TestPythonCancel(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	queue := w.createQueue("cancel", shortLease, pb.OnExpiry_ON_EXPIRY_REQUEUE)
	p := w.startPython("handlers.py", queue, 1)
	id := w.enqueueText(queue, "swallow")
	w.awaitState(id, "PROCESSING")
	if _, err := pb.NewJobServiceClient(w.service.Conn()).CancelJob(t.Context(), &pb.CancelJobRequest{JobId: id}); err != nil {
		t.Fatal(err)
	}
	w.awaitState(id, "CANCELLED")
	p.drain()
}

// TestPythonHandlerThatDoesNotReturn: the second signal ends the worker soon, and the job is not given
// to others while its work goes on.
func TestPythonHandlerThatDoesNotReturn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	queue := w.createQueue("stubborn", 10*time.Second, pb.OnExpiry_ON_EXPIRY_REQUEUE)
	p := w.startPython("handlers.py", queue, 1)
	id := w.enqueueText(queue, "stubborn")
	w.awaitBeat(id)
	p.signal(syscall.SIGTERM)
	p.signal(syscall.SIGINT) // two of a kind may be one
	await(t, "the end of "+p.String(), p.ended)
	if code := p.cmd.ProcessState.ExitCode(); code != 1 {
		t.Errorf("exit code %d", code)
	}
	if got := w.firstEnd(id); got != "" && got != "EXPIRED " {
		t.Errorf("the lease was ended: %s", got)
	}
}
