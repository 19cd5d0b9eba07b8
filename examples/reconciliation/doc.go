// Command reconciliation finds payments that succeeded at the payment provider but are still open
// here, and settles each of them once.
//
//	provider ──page by page──► job in "reconciliation" ──Complete, then_enqueue──► jobs in "settlement"
//	                              │ checkpoint after each page                        │ one per payment,
//	                              ▼                                                   ▼ by its key
//	                           the next lease goes on from there                    table payments
//
// What makes it safe against a crash at any moment:
//
//   - The scan leaves a checkpoint after each page: how far it came, and what it found. Whoever takes
//     over goes on from there, and asks for no page twice but the one in which the crash was.
//   - What was found is not settled by the scan. It becomes jobs in the very transaction that
//     completes the scan: there is no moment at which a finding is neither in a checkpoint nor a job.
//   - A settlement has the payment as its idempotency key: two scans that find the same payment make
//     one job of it.
//   - A settlement is one conditional statement: a payment that is not open is left alone.
package main
