package doctest

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Example is a block that is run, with the answer that the document shows below it.
type Example struct {
	Block
	// Answer is the next block, where that is of language json or text, before another
	// block to run. Nil: the document shows none.
	Answer *Block
}

// Examples are the blocks of a language with their answers.
func (d *Document) Examples(lang string) []Example {
	var examples []Example
	for _, b := range d.Blocks() {
		last := len(examples) - 1
		switch {
		case b.Lang == lang:
			examples = append(examples, Example{Block: b})
		case (b.Lang == "json" || b.Lang == "text") && last >= 0 && examples[last].Answer == nil && examples[last].Heading == b.Heading:
			examples[last].Answer = &b
		}
	}
	return examples
}

// Check says how an output differs from the answer that the document shows. An answer in JSON
// may leave fields out, but what it shows must be so; of an answer in text each line must be
// there, in order. Times, tokens and fractions of seconds are different in each run and count
// as equal.
func (a *Block) Check(output string) error {
	if a.Lang == "json" {
		return checkJSON(a.Text, output)
	}
	rest := variable.ReplaceAllString(output, "~")
	for line := range strings.SplitSeq(strings.TrimSpace(a.Text), "\n") {
		line = strings.TrimSpace(variable.ReplaceAllString(line, "~"))
		_, after, found := strings.Cut(rest, line)
		if !found {
			return fmt.Errorf("no line %q", line)
		}
		rest = after
	}
	return nil
}

// variable is what differs from run to run: timestamps, lease tokens, fractions of seconds.
var variable = regexp.MustCompile(`\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.\d]*Z?|\bAQAAAA[\w-]{30,}|\d+\.\d+s\b`)

func checkJSON(want, got string) error {
	var w, g any
	if err := json.Unmarshal([]byte(want), &w); err != nil {
		return fmt.Errorf("the document's answer is no JSON: %w", err)
	}
	if err := json.Unmarshal([]byte(got), &g); err != nil {
		return fmt.Errorf("the output is no JSON: %w", err)
	}
	return within("", w, g)
}

// within tells where want is not part of got.
func within(path string, want, got any) error {
	switch w := want.(type) {
	case map[string]any:
		g, is := got.(map[string]any)
		if !is || len(w) == 0 && len(g) > 0 {
			return fmt.Errorf("%s: want an object like %v, got %v", path, want, got)
		}
		for _, key := range slices.Sorted(maps.Keys(w)) {
			value, there := g[key]
			if !there {
				return fmt.Errorf("%s.%s is missing", path, key)
			}
			if err := within(path+"."+key, w[key], value); err != nil {
				return err
			}
		}
	case []any:
		g, is := got.([]any)
		if !is || len(g) != len(w) {
			return fmt.Errorf("%s: want a list of %d, got %v", path, len(w), got)
		}
		for i := range w {
			if err := within(fmt.Sprintf("%s[%d]", path, i), w[i], g[i]); err != nil {
				return err
			}
		}
	default:
		if plain(want) != plain(got) {
			return fmt.Errorf("%s: want %v, got %v", path, want, got)
		}
	}
	return nil
}

func plain(value any) string { return variable.ReplaceAllString(fmt.Sprint(value), "~") }
