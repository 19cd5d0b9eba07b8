package imports

import (
	"fmt"

	"github.com/jackc/pgx/v5"
)

// batch are rows as columns, as sqlTake wants them.
type batch struct {
	seen, skipped int
	bad           []outcome

	keys, queues, payloads         []*string
	data                           [][]byte
	contentTypes, headers, subject []*string
	priorities                     []*int32
	runAt                          []*string
	idempotencyKeys                []*string
	maxAttempts                    []*int32
	states                         []*string
	attempts                       []*int32
	createdAt, finishedAt          []*string
	owners                         []*string
	until                          []*string
	results, errors                []*string
}

func (b *batch) args() []any {
	return []any{b.keys, b.queues, b.payloads, b.data, b.contentTypes, b.headers, b.subject, b.priorities, b.runAt, b.idempotencyKeys,
		b.maxAttempts, b.states, b.attempts, b.createdAt, b.finishedAt, b.owners, b.until, b.results, b.errors}
}

// row is one row of the table.
type row struct {
	key, queue, payload           *string
	data                          []byte
	contentType, headers, subject *string
	priority                      *int32
	runAt                         *string
	idempotencyKey                *string
	maxAttempts                   *int32
	state                         *string
	attempts                      *int32
	createdAt, finishedAt         *string
	owner                         *string
	until                         *string
	result, error                 *string
}

func (b *batch) add(r *row) {
	b.keys, b.queues, b.payloads = append(b.keys, r.key), append(b.queues, r.queue), append(b.payloads, r.payload)
	b.data, b.contentTypes, b.headers = append(b.data, r.data), append(b.contentTypes, r.contentType), append(b.headers, r.headers)
	b.subject, b.priorities, b.runAt = append(b.subject, r.subject), append(b.priorities, r.priority), append(b.runAt, r.runAt)
	b.idempotencyKeys, b.maxAttempts = append(b.idempotencyKeys, r.idempotencyKey), append(b.maxAttempts, r.maxAttempts)
	b.states, b.attempts = append(b.states, r.state), append(b.attempts, r.attempts)
	b.createdAt, b.finishedAt = append(b.createdAt, r.createdAt), append(b.finishedAt, r.finishedAt)
	b.owners, b.until = append(b.owners, r.owner), append(b.until, r.until)
	b.results, b.errors = append(b.results, r.result), append(b.errors, r.error)
}

// collect reads rows, and sets aside those whose state the mapping does not take over.
func (m *Mapping) collect(rows pgx.Rows) (batch, error) {
	var b batch
	_, err := pgx.CollectRows(rows, func(found pgx.CollectableRow) (struct{}, error) {
		var r row
		err := found.Scan(&r.key, &r.queue, &r.payload, &r.data, &r.contentType, &r.headers, &r.subject, &r.priority, &r.runAt,
			&r.idempotencyKey, &r.maxAttempts, &r.state, &r.attempts, &r.createdAt, &r.finishedAt, &r.owner, &r.until, &r.result, &r.error)
		if err == nil {
			b.seen++
			m.sort(&b, &r)
		}
		return struct{}{}, err
	})
	return b, err
}

func (m *Mapping) sort(b *batch, r *row) {
	state, value := pending, "NULL"
	if m.Fields.State != "" {
		if r.state != nil {
			value = *r.state
		}
		state = m.States[value]
	}
	switch state {
	case skip:
		b.skipped++
	case "":
		b.bad = append(b.bad, outcome{Key: *r.key, Reason: fmt.Sprintf("the mapping has no state for %q", value)})
	default:
		r.state = &state
		b.add(r)
	}
}
