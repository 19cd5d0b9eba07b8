// Package operate has the commands for people who look after a running service: jobs, queues,
// stuck, enqueue, top and lint. They know the API and nothing else: what they do, any client
// could do.
//
// Output. On a terminal people get tables, colour and times as "3m ago"; elsewhere programs get
// JSON as the API has it, with times in RFC 3339. --output overrides either. What other people
// wrote (owners, subjects, errors) is shown without its control characters: it must not be able
// to redraw the terminal of whoever looks at it.
//
// Acts. An act that cannot be undone asks first, or wants --yes where nobody can be asked. A
// bulk act goes in batches, each of which is whole: a command that is killed in the middle is
// run again and does the rest, because a filter takes up only what there is left to do.
//
// Exit codes: 0 done, 1 failed, 2 wrong usage, 3 a check or dry run found something.
package operate
