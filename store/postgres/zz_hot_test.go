package postgres_test

import ("testing";"fmt";"time";"github.com/leasehold/leasehold/store")

func TestZZHot(t *testing.T) {
	h := newHarness(t)
	id := h.enqueue(t, store.NewJob{})[0]
	ref := h.lease(t, id)
	for i := range 200 { h.beat(t, ref, fmt.Sprint(i)) }
	time.Sleep(1500*time.Millisecond)
	h.exec(t, `SELECT pg_stat_clear_snapshot()`)
	fmt.Println(h.rows(t, `SELECT n_tup_upd || ' ' || n_tup_hot_upd FROM pg_stat_user_tables WHERE relname='jobs'`))
	for _, q := range []string{`EXPLAIN SELECT * FROM leasehold.all_jobs WHERE id = 77`, `EXPLAIN SELECT * FROM leasehold.all_leases WHERE job_id = 77`} {
		for _, l := range h.rows(t, q) { fmt.Println(l) }
	}
}
