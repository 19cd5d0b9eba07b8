// Package workerstest runs the workers of examples, in every language that there is, against a real
// service: they are judged by the conformance check, share a queue while they are killed and drained
// at random, and are stopped for longer than their leases. Its tests need what the languages need,
// and run by `make test-workers`, which prepares that.
//
// A worker is added by one line of the table languages. Its program is examples/NAME/run.sh, which
// must exec the worker, and examples/NAME/setup.sh prepares it.
package workerstest
