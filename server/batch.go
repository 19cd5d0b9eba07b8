package server

import (
	"context"
	"errors"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/leasehold/leasehold/store"
)

// operation is one write of the API in three steps: convert the request, call the store
// with all items at once, make the answers. A single call is a batch of one, so that both
// say the same.
type operation[Req proto.Message, Item, Result, Answer any] struct {
	in  func(Req) (Item, error)
	run func(context.Context, []Item) ([]Result, error)
	out func(Result) (Answer, error)
}

// outcome is the answer for one item, or why it was refused.
type outcome[Answer any] struct {
	ok  Answer
	err error
}

// one runs the operation on one request, which the validation interceptor has passed.
func (op operation[Req, Item, Result, Answer]) one(ctx context.Context, req Req) (Answer, error) {
	var none Answer
	item, err := op.in(req)
	if err != nil {
		return none, err
	}
	results, err := op.run(ctx, []Item{item})
	if err != nil {
		return none, err
	}
	return op.out(results[0])
}

// batch runs the operation on each item, with one call of the store for those that are
// valid. The outcomes stand in the order of the items. The error is that of the whole call:
// no item was decided.
func (op operation[Req, Item, Result, Answer]) batch(ctx context.Context, v *validator, reqs []Req) ([]outcome[Answer], error) {
	outcomes := make([]outcome[Answer], len(reqs))
	items := make([]Item, 0, len(reqs))
	places := make([]int, 0, len(reqs))
	for i, req := range reqs {
		item, err := op.check(v, req)
		if err != nil {
			outcomes[i].err = err
			continue
		}
		items, places = append(items, item), append(places, i)
	}
	if len(items) == 0 {
		return outcomes, nil
	}
	results, err := op.run(ctx, items)
	if err != nil {
		return nil, err
	}
	for k, r := range results {
		o := &outcomes[places[k]]
		o.ok, o.err = op.out(r)
		if errors.Is(o.err, context.DeadlineExceeded) || errors.Is(o.err, context.Canceled) {
			o.err = &store.OutcomeUnknownError{Cause: o.err}
		}
	}
	return outcomes, nil
}

func (op operation[Req, Item, Result, Answer]) check(v *validator, req Req) (Item, error) {
	if err := v.check(req); err != nil {
		var none Item
		return none, err
	}
	return op.in(req)
}

// autoCreate makes unknown queues where that is on, and runs the items that met one, which
// had no effect, once more. The others keep their results.
type autoCreate[Item, Result any] struct {
	store  store.QueueStore
	run    func(context.Context, []Item) ([]Result, error)
	queues func(Item) []string
	err    func(*Result) *error
}

func (a autoCreate[Item, Result]) do(ctx context.Context, items []Item) ([]Result, error) {
	results, err := a.run(ctx, items)
	if err != nil {
		return nil, err
	}
	var names []string
	var again []Item
	var places []int
	for i := range results {
		if _, ok := errors.AsType[*store.QueueNotFoundError](*a.err(&results[i])); ok {
			again, places = append(again, items[i]), append(places, i)
			names = append(names, a.queues(items[i])...)
		}
	}
	if len(again) == 0 {
		return results, nil
	}
	slices.Sort(names)
	second, err := a.again(ctx, again, slices.Compact(names))
	for k, place := range places {
		if err != nil {
			// Only these: the items beside them are decided and must be answered.
			*a.err(&results[place]) = err
		} else {
			results[place] = second[k]
		}
	}
	return results, nil
}

func (a autoCreate[Item, Result]) again(ctx context.Context, items []Item, names []string) ([]Result, error) {
	if err := a.store.EnsureQueues(ctx, names); err != nil {
		return nil, err
	}
	return a.run(ctx, items)
}
