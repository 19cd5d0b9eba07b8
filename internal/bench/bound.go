package bench

import "fmt"

// Bound is what a figure must reach. The zero value is none.
type Bound struct {
	kind  boundKind
	value float64
}

type boundKind int

const (
	noBound boundKind = iota
	ratioAtLeast
	ratioAtMost
	valueAtLeast
	valueAtMost
)

func ofLimit(least float64) Bound   { return Bound{kind: ratioAtLeast, value: least} }
func timesLimit(most float64) Bound { return Bound{kind: ratioAtMost, value: most} }

// Met tells whether a row reaches its bound. A row that lacks the limit does not: nothing was
// shown.
func (b Bound) Met(r Result) bool {
	switch b.kind {
	case ratioAtLeast:
		return r.Ratio != nil && *r.Ratio >= b.value
	case ratioAtMost:
		return r.Ratio != nil && *r.Ratio <= b.value
	case valueAtLeast:
		return r.Median >= b.value
	case valueAtMost:
		return r.Median <= b.value
	default:
		return true
	}
}

func (b Bound) String() string {
	switch b.kind {
	case ratioAtLeast:
		return fmt.Sprintf("ratio >= %g", b.value)
	case ratioAtMost:
		return fmt.Sprintf("ratio <= %g", b.value)
	case valueAtLeast:
		return fmt.Sprintf(">= %g", b.value)
	case valueAtMost:
		return fmt.Sprintf("<= %g", b.value)
	default:
		return ""
	}
}
