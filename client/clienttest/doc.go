// Package clienttest tests handlers without a service. A handler is run once, by the real worker
// runtime, over a service that exists in memory only and knows one job:
//
//	got := clienttest.Run(t, settle, clienttest.Job{Payload: payload, Attempt: 2, LastStage: "psp_call"})
//	if got.End != clienttest.Completed || !slices.Equal(got.Stages, []string{"psp_call", "booked"}) {
//		t.Errorf("got %+v", got)
//	}
//
// Everything between the handler and the wire is real: typed payloads, panics, the kinds of errors,
// stages that wait until they are recorded, the causes of contexts. What the service itself would
// do with the end (backoff, attempts, other workers) is not here; that needs a real one.
//
// To see what a handler does when its job is cancelled, its lease lost or its worker shut down, start
// it, wait for the stage at which that is to happen, and let it happen:
//
//	run := clienttest.Start(t, settle, clienttest.Job{Payload: payload})
//	run.AwaitStage("psp_call")
//	run.Cancel()
//	got := run.Wait()
package clienttest
