package server

// batchRoom is what still fits into a batch.
type batchRoom[I, O any] struct {
	m            *merger[I, O]
	items, bytes int
	group        string
	seen         map[any]bool
}

func newBatchRoom[I, O any](m *merger[I, O]) *batchRoom[I, O] {
	return &batchRoom[I, O]{m: m, items: mergedItems, bytes: mergedBytes, seen: map[any]bool{}}
}

// admit takes a call in if it fits beside those that are in; the first always does.
func (r *batchRoom[I, O]) admit(items []I, first bool) bool {
	size, group := 0, r.groupOf(items)
	if !first && group != r.group {
		return false
	}
	for i := range items {
		size += r.m.bytes(&items[i])
		if r.m.identity != nil && !first && r.seen[r.m.identity(&items[i])] {
			return false
		}
	}
	if !first && (len(items) > r.items || size > r.bytes) {
		return false
	}
	for i := range items {
		if r.m.identity != nil {
			r.seen[r.m.identity(&items[i])] = true
		}
	}
	r.items, r.bytes, r.group = r.items-len(items), r.bytes-size, group
	return true
}

// mixedGroup is the group of a call whose items do not belong to one.
const mixedGroup = "\x00mixed"

func (r *batchRoom[I, O]) groupOf(items []I) string {
	if r.m.group == nil || len(items) == 0 {
		return ""
	}
	group := r.m.group(&items[0])
	for i := range items {
		if r.m.group(&items[i]) != group {
			return mixedGroup
		}
	}
	return group
}
