package doctest

import (
	"slices"
	"strings"
	"testing"
)

const sample = "# Title\n\ntext with `|` in it\n\n## Table of `things`\n\n" +
	"| a | b |\n|---|---|\n| `x|y` | one \\| two |\n| z | |\n\n" +
	"```sh\n# no heading\n| no | table |\necho 1\n```\n\nsays\n\n```json\n{\"a\": 1}\n```\n\n```sh\necho 2\n```\n\n## Last\n\n```text\n1\n```\n"

func TestBlocksAndExamples(t *testing.T) {
	t.Parallel()
	d := Parse("sample.md", sample)
	blocks := d.Blocks("sh")
	if len(blocks) != 2 || blocks[0].Line != 12 || blocks[0].Heading != "Table of `things`" || blocks[1].Text != "echo 2\n" {
		t.Errorf("blocks: %+v", blocks)
	}
	if got := d.Headings(); !slices.Equal(got, []string{"Title", "Table of `things`", "Last"}) {
		t.Errorf("headings: %q", got)
	}
	examples := d.Examples("sh")
	// The text below the next heading is not the second one's answer.
	if len(examples) != 2 || examples[0].Answer == nil || examples[0].Answer.Text != "{\"a\": 1}\n" || examples[1].Answer != nil {
		t.Errorf("examples: %+v", examples)
	}
	if strings.Contains(d.Prose(), "echo") || !strings.Contains(d.Prose(), "says") {
		t.Errorf("prose: %q", d.Prose())
	}
}

func TestTable(t *testing.T) {
	t.Parallel()
	rows := Parse("sample.md", sample).Table(t, "Table of `things`")
	want := [][]string{{"`x|y`", `one \| two`}, {"z", ""}}
	if !slices.EqualFunc(rows, want, slices.Equal[[]string]) {
		t.Errorf("got %q, want %q", rows, want)
	}
	if got := Words("`a` and `b c`"); !slices.Equal(got, []string{"a", "b c"}) {
		t.Errorf("words: %q", got)
	}
}

func TestAnchor(t *testing.T) {
	t.Parallel()
	for heading, want := range map[string]string{
		"What is guaranteed, and what is not": "what-is-guaranteed-and-what-is-not",
		"Backup and restore":                  "backup-and-restore",
		"all_jobs":                            "all_jobs",
		"A `thing`":                           "a-thing",
	} {
		if got := Anchor(heading); got != want {
			t.Errorf("%q: got %q, want %q", heading, got, want)
		}
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lang, shown, output, fault string
	}{
		"the same":           {"json", `{"a": [1, {"b": "x"}]}`, `{"a":[1,{"b":"x"}]}`, ""},
		"fields left out":    {"json", `{"a": {"b": 1}}`, `{"a": {"b": 1, "c": 2}, "d": 3}`, ""},
		"another value":      {"json", `{"a": {"b": 1}}`, `{"a": {"b": 2}}`, ".a.b: want 1, got 2"},
		"a field is missing": {"json", `{"a": {"b": 1}}`, `{"a": {}}`, ".a.b is missing"},
		"a longer list":      {"json", `{"a": [1]}`, `{"a": [1, 2]}`, ".a: want a list of 1"},
		"an empty answer":    {"json", `{}`, `{"a": 1}`, "want an object"},
		"no JSON":            {"json", `{}`, `ERROR:`, "no JSON"},
		"another time":       {"json", `{"at": "2026-12-01T02:35:54.716142Z"}`, `{"at": "2027-01-02T03:04:05Z"}`, ""},
		"another fraction":   {"json", `{"in": "0.333333333s"}`, `{"in": "0.327s"}`, ""},
		"another duration":   {"json", `{"in": "30s"}`, `{"in": "31s"}`, "want 30s"},
		"lines in order":     {"text", "one\nthree\n", "zero\n  one\n  two\nthree\n", ""},
		"lines out of order": {"text", "three\none\n", "one\ntwo\nthree\n", `no line "one"`},
		"a line is missing":  {"text", "four\n", "one\n", `no line "four"`},
	} {
		err := (&Block{Lang: c.lang, Text: c.shown}).Check(c.output)
		if (err == nil) != (c.fault == "") || err != nil && !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%s: got %v, want %q", name, err, c.fault)
		}
	}
}
