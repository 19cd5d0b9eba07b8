package bench

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
)

func reported() []Result {
	limit, good, bad := 40_000.0, 0.8, 0.5
	return []Result{
		{Workload: "drain", Unit: "jobs/s", Min: 31_000, Median: 32_000, Max: 33_000, Limit: &limit, Ratio: &good, bound: ofLimit(0.75)},
		{Workload: "slow", Unit: "jobs/s", Min: 1, Median: 2, Max: 3, Limit: &limit, Ratio: &bad, bound: ofLimit(0.75)},
		{Workload: "memory", Unit: "MiB", Min: 80.04, Median: 85, Max: 1_234_567},
	}
}

func TestTable(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := WriteTable(&out, reported()); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	var got [][]string
	for _, line := range lines {
		got = append(got, strings.Fields(line))
	}
	want := [][]string{
		strings.Fields("workload unit min median max limit ratio bound"),
		strings.Fields("drain jobs/s 31,000 32,000 33,000 40,000 0.80 ratio >= 0.75 ok"),
		strings.Fields("slow jobs/s 1.00 2.00 3.00 40,000 0.50 ratio >= 0.75 below"),
		strings.Fields("memory MiB 80.0 85.0 1,234,567"),
	}
	if !slices.EqualFunc(got, want, slices.Equal[[]string]) {
		t.Errorf("the table is\n%s", out.String())
	}
}

func TestJSONHasExactlyTheFieldsPromised(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := WriteJSON(&out, reported()); err != nil {
		t.Fatal(err)
	}
	var rows []map[string]any
	if err := json.Unmarshal(out.Bytes(), &rows); err != nil {
		t.Fatal(err)
	}
	for _, row := range rows {
		if keys := slices.Sorted(maps.Keys(row)); !slices.Equal(keys, []string{"limit", "max", "median", "min", "ratio", "unit", "workload"}) {
			t.Errorf("a row has %v", keys)
		}
	}
	if len(rows) != 3 || rows[0]["limit"] != 40_000.0 || rows[0]["ratio"] != 0.8 || rows[2]["limit"] != nil || rows[2]["ratio"] != nil {
		t.Errorf("the rows are %v", rows)
	}
}

func TestJSONOfNothingIsAnEmptyArray(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := WriteJSON(&out, nil); err != nil || strings.TrimSpace(out.String()) != "[]" {
		t.Errorf("%q, %v", out.String(), err)
	}
}

func TestBelow(t *testing.T) {
	t.Parallel()
	if got := Below(reported()); !slices.Equal(got, []string{"slow"}) {
		t.Errorf("below are %v", got)
	}
}

func TestNumber(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]string{
		0: "0.00", 1.234: "1.23", 12.34: "12.3", 123.4: "123", 1234: "1,234", 1234567: "1,234,567", -1234: "-1,234", 999.6: "1,000",
	} {
		if got := number(v); got != want {
			t.Errorf("number(%g) is %q, want %q", v, got, want)
		}
	}
}
