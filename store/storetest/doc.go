// Package storetest is the contract of a store.Store as tests, and what tests need beside
// it. Nothing outside tests imports it.
//
//   - Run is the suite: every rule that a Store upholds, by its number.
//   - RunRandom drives random calls against a Store and compares every answer and every
//     row with the pure model (package model).
//   - Recorder writes down what concurrent callers saw; CheckInvariants judges that
//     history together with the tables as they stand at the end, and CheckLinearizable
//     asks whether any order of the calls on each job explains the answers.
//   - Memory is a Store over the model, for tests of what stands above a Store.
//
// A test never waits for time to pass, because PostgreSQL's clock cannot be moved: the
// Harness shifts the times of a job into the past instead.
package storetest
