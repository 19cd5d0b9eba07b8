package bench

import (
	"math"
	"slices"
)

// Result is one row: a figure over the rounds of its workload, with the limit of the same run.
type Result struct {
	Workload string `json:"workload"`
	Unit     string `json:"unit"`
	// Min, Median and Max are over the rounds.
	Min    float64 `json:"min"`
	Median float64 `json:"median"`
	Max    float64 `json:"max"`
	// Limit is the median of the rounds of the limit; nil where there is none.
	Limit *float64 `json:"limit"`
	// Ratio is the median of the ratios of the pairs, each a round and the round of the limit
	// before it; nil where there is no limit.
	Ratio *float64 `json:"ratio"`

	bound Bound
}

// Bound is what the figure must reach.
func (r Result) Bound() Bound { return r.bound }

// pair is one round of a figure and the round of its limit; NaN where there is no limit.
type pair struct{ limit, value float64 }

// summarize makes the row of a figure.
func summarize(f figure, pairs []pair) Result {
	values := make([]float64, 0, len(pairs))
	var limits, ratios []float64
	for _, p := range pairs {
		values = append(values, p.value)
		if !math.IsNaN(p.limit) {
			limits = append(limits, p.limit)
		}
		if p.limit > 0 { // not NaN either
			ratios = append(ratios, p.value/p.limit)
		}
	}
	return Result{
		Workload: f.name, Unit: f.unit,
		Min: slices.Min(values), Median: median(values), Max: slices.Max(values),
		Limit: medianOf(limits), Ratio: medianOf(ratios), bound: f.bound,
	}
}

func medianOf(values []float64) *float64 {
	if len(values) == 0 {
		return nil
	}
	m := median(values)
	return &m
}

// median of at least one value.
func median(values []float64) float64 { return quantile(values, 0.5) }

// quantile of at least one value, between the two nearest where none stands there.
func quantile(values []float64, q float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	at := q * float64(len(sorted)-1)
	low := int(at)
	if low+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[low] + (at-float64(low))*(sorted[low+1]-sorted[low])
}

// together is the rate of work that takes its time at both limits, one after the other.
func together(rates ...float64) float64 {
	sum := 0.0
	for _, rate := range rates {
		sum += 1 / rate
	}
	return 1 / sum
}
