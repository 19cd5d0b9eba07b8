package bench

import (
	"math"
	"testing"
)

func near(a, b float64) bool { return math.Abs(a-b) < 1e-9 }

func TestQuantile(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		values []float64
		q      float64
		want   float64
	}{
		{[]float64{7}, 0.5, 7},
		{[]float64{7}, 0.99, 7},
		{[]float64{3, 1, 2}, 0.5, 2},
		{[]float64{4, 1, 3, 2}, 0.5, 2.5},
		{[]float64{5, 1, 4, 2, 3}, 0, 1},
		{[]float64{5, 1, 4, 2, 3}, 1, 5},
		{[]float64{0, 100}, 0.99, 99},
	} {
		if got := quantile(c.values, c.q); !near(got, c.want) {
			t.Errorf("quantile(%v, %g) is %g, want %g", c.values, c.q, got, c.want)
		}
	}
}

// TestSummaryTakesTheMedianOfPairs and not the ratio of the medians: the machine was half as
// fast in the second pair, which the ratios do not see.
func TestSummaryTakesTheMedianOfPairs(t *testing.T) {
	t.Parallel()
	f := figure{name: "w", unit: "jobs/s", bound: ofLimit(0.75)}
	got := summarize(f, []pair{{limit: 100, value: 80}, {limit: 50, value: 40}, {limit: 10, value: 9}})
	if got.Workload != "w" || got.Unit != "jobs/s" || got.Min != 9 || got.Median != 40 || got.Max != 80 {
		t.Errorf("the row is %+v", got)
	}
	if got.Limit == nil || *got.Limit != 50 || got.Ratio == nil || !near(*got.Ratio, 0.8) {
		t.Errorf("limit and ratio are %v and %v", got.Limit, got.Ratio)
	}
}

func TestSummaryWithoutLimit(t *testing.T) {
	t.Parallel()
	got := summarize(figure{name: "w"}, []pair{{limit: math.NaN(), value: 3}, {limit: math.NaN(), value: 1}})
	if got.Limit != nil || got.Ratio != nil || got.Median != 2 {
		t.Errorf("the row is %+v", got)
	}
}

func TestTogether(t *testing.T) {
	t.Parallel()
	if got := together(30, 60); !near(got, 20) {
		t.Errorf("30 a second and then 60 a second are %g a second, want 20", got)
	}
}

func TestBounds(t *testing.T) {
	t.Parallel()
	ratio := func(r float64) Result { return Result{Median: 1e9, Ratio: &r} }
	value := func(v float64) Result { return Result{Median: v} }
	atLeast, atMost := Bound{kind: valueAtLeast, value: 95}, Bound{kind: valueAtMost, value: 10}
	for _, c := range []struct {
		b    Bound
		r    Result
		want bool
	}{
		{Bound{}, value(0), true},
		{ofLimit(0.75), ratio(0.75), true},
		{ofLimit(0.75), ratio(0.74), false},
		{ofLimit(0.75), value(1), false}, // nothing was shown
		{timesLimit(1.5), ratio(1.5), true},
		{timesLimit(1.5), ratio(1.6), false},
		{timesLimit(1.5), value(1), false},
		{atLeast, value(95), true},
		{atLeast, value(94), false},
		{atMost, value(10), true},
		{atMost, value(11), false},
	} {
		if got := c.b.Met(c.r); got != c.want {
			t.Errorf("%q of %+v: met is %v", c.b, c.r, got)
		}
	}
}
