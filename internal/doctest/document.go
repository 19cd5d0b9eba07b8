package doctest

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Root is the folder of the repository.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("there is no go.mod above the working directory")
		}
		dir = filepath.Dir(dir)
	}
}

// Document is one Markdown file.
type Document struct {
	Path  string // from the root of the repository
	lines []string
}

// Read reads a document by its path from the root of the repository.
func Read(t testing.TB, path string) *Document {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(Root(t), filepath.FromSlash(path)))
	if err != nil {
		t.Fatal(err)
	}
	return Parse(path, string(text))
}

// Parse makes a document of a text.
func Parse(path, text string) *Document {
	return &Document{Path: path, lines: strings.Split(text, "\n")}
}

// Block is one fenced code block.
type Block struct {
	Lang    string // the word behind the fence
	Heading string // the nearest above it
	Line    int    // of the fence, counted from 1
	Text    string
}

// Blocks are the code blocks of some languages, in order; of all where none is named.
func (d *Document) Blocks(langs ...string) []Block {
	var blocks []Block
	var open *Block
	heading := ""
	for i, line := range d.lines {
		fence, is := strings.CutPrefix(line, "```")
		switch {
		case is && open == nil:
			open = &Block{Lang: strings.TrimSpace(fence), Heading: heading, Line: i + 1}
		case is:
			if len(langs) == 0 || slices.Contains(langs, open.Lang) {
				blocks = append(blocks, *open)
			}
			open = nil
		case open != nil:
			open.Text += line + "\n"
		case strings.HasPrefix(line, "#"):
			heading = headingText(line)
		}
	}
	return blocks
}

// Prose is the text outside of code blocks.
func (d *Document) Prose() string {
	var text strings.Builder
	inside := false
	for _, line := range d.lines {
		if strings.HasPrefix(line, "```") {
			inside = !inside
		} else if !inside {
			text.WriteString(line + "\n")
		}
	}
	return text.String()
}

// Headings are all headings, without their marks.
func (d *Document) Headings() []string {
	var headings []string
	for line := range strings.SplitSeq(d.Prose(), "\n") {
		if strings.HasPrefix(line, "#") {
			headings = append(headings, headingText(line))
		}
	}
	return headings
}

func headingText(line string) string { return strings.TrimSpace(strings.TrimLeft(line, "#")) }

// Anchor is the name by which a link reaches a heading.
func Anchor(heading string) string {
	name := strings.ToLower(heading)
	name = regexp.MustCompile(`[^\p{L}\p{N}_ -]`).ReplaceAllString(name, "")
	return strings.ReplaceAll(name, " ", "-")
}

// Table returns the rows of the first table below a heading, without its head, cell by cell.
// A document without that table fails the test.
func (d *Document) Table(t testing.TB, heading string) [][]string {
	t.Helper()
	below, inside := false, false
	var rows [][]string
	for _, line := range d.lines {
		if strings.HasPrefix(line, "```") {
			inside = !inside
		}
		switch {
		case inside:
		case strings.HasPrefix(line, "#") && below && len(rows) == 0:
			below = headingText(line) == heading
		case strings.HasPrefix(line, "#") && !below:
			below = headingText(line) == heading
		case below && strings.HasPrefix(line, "|"):
			rows = append(rows, cells(line))
		case below && len(rows) > 0:
			return body(t, d, heading, rows)
		}
	}
	return body(t, d, heading, rows)
}

// body drops the head of a table and the line below it.
func body(t testing.TB, d *Document, heading string, rows [][]string) [][]string {
	t.Helper()
	if len(rows) < 3 {
		t.Fatalf("%s has no table below %q", d.Path, heading)
	}
	for i, row := range rows {
		if len(row) != len(rows[0]) {
			t.Fatalf("%s: row %d of the table below %q has %d cells, its head has %d: %q", d.Path, i, heading, len(row), len(rows[0]), row)
		}
	}
	return rows[2:]
}

// cells splits a row. A bar within backquotes or behind a backslash belongs to its cell.
func cells(line string) []string {
	var row []string
	cell, quoted, escaped := "", false, false
	for _, c := range strings.TrimSuffix(strings.TrimSpace(line), "|")[1:] {
		switch {
		case c == '|' && !quoted && !escaped:
			row = append(row, strings.TrimSpace(cell))
			cell = ""
			continue
		case c == '`':
			quoted = !quoted
		}
		escaped = c == '\\'
		cell += string(c)
	}
	return append(row, strings.TrimSpace(cell))
}

var quotedWord = regexp.MustCompile("`([^`]+)`")

// Words are what stands in backquotes in a cell.
func Words(cell string) []string {
	var words []string
	for _, m := range quotedWord.FindAllStringSubmatch(cell, -1) {
		words = append(words, m[1])
	}
	return words
}
