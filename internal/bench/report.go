package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"
)

// WriteJSON writes the rows as an array of objects.
func WriteJSON(w io.Writer, results []Result) error {
	if results == nil {
		results = []Result{} // an empty array, not null
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(results)
}

// WriteTable writes the rows as a table, with the bound of each and whether it is reached.
func WriteTable(w io.Writer, results []Result) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "workload\tunit\tmin\tmedian\tmax\tlimit\tratio\tbound\t\t")
	for _, r := range results {
		limit, ratio := "", ""
		if r.Limit != nil {
			limit = number(*r.Limit)
		}
		if r.Ratio != nil {
			ratio = strconv.FormatFloat(*r.Ratio, 'f', 2, 64)
		}
		fmt.Fprintln(t, strings.Join([]string{
			r.Workload, r.Unit, number(r.Min), number(r.Median), number(r.Max), limit, ratio, r.bound.String(), verdict(r), "",
		}, "\t"))
	}
	return t.Flush()
}

// verdict is ok or below; nothing where there is no bound.
func verdict(r Result) string {
	switch {
	case r.bound.kind == noBound:
		return ""
	case r.bound.Met(r):
		return "ok"
	default:
		return "below"
	}
}

// Below are the names of the rows that miss their bound.
func Below(results []Result) []string {
	var names []string
	for _, r := range results {
		if !r.bound.Met(r) {
			names = append(names, r.Workload)
		}
	}
	return names
}

// number is a figure with three significant digits at least, thousands apart.
func number(v float64) string {
	if math.Abs(v) < 100 {
		digits := 2
		if math.Abs(v) >= 10 {
			digits = 1
		}
		return strconv.FormatFloat(v, 'f', digits, 64)
	}
	text := strconv.FormatFloat(math.Abs(v), 'f', 0, 64)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	if v < 0 {
		return "-" + text
	}
	return text
}
