package postgres

import "testing"

// TestR48WhatSQLCommitsLateLiesBehindTheMark: the same for leasehold.enqueue, in any kind of
// transaction. Nothing is scanned from the start here, so the claim finds the job behind its
// mark or not at all.
func TestR48WhatSQLCommitsLateLiesBehindTheMark(t *testing.T) {
	t.Parallel()
	s, stranger := markedStore(t)
	for name, begin := range map[string][]string{
		"at once":             {`BEGIN`},
		"repeatable read":     {`BEGIN ISOLATION LEVEL REPEATABLE READ`},
		"in a subtransaction": {`BEGIN`, `SAVEPOINT s`},
		"after own writes":    {`BEGIN`, `CREATE TEMPORARY TABLE orders (id int) ON COMMIT DROP`},
	} {
		for _, sql := range append(begin, `SELECT FROM leasehold.enqueue('q')`) {
			if _, err := stranger.Exec(t.Context(), sql); err != nil {
				t.Fatal(name, err)
			}
		}
		churn(t, s, 300)
		if _, err := stranger.Exec(t.Context(), `COMMIT`); err != nil {
			t.Fatal(name, err)
		}
		if got := claimed(t, s, 10); got != 1 {
			t.Errorf("%s: %d jobs were leased, want the one that was committed late", name, got)
		}
		before := s.marks.marked()
		churn(t, s, 300)
		if got := s.marks.marked(); !before.before(got) {
			t.Errorf("%s: the mark did not move once the transaction had ended: this proves nothing", name)
		}
	}
}
