package protofiles

import (
	"fmt"
	"strings"
)

// token is a word, number, string or sign of a proto file. Comments and spaces are between
// the tokens.
type token struct {
	text     string
	from, to int    // in the source
	instead  string // what stands in its place, where a list was shortened
}

// SyntaxError says that a proto file ends in the middle of a comment or string.
type SyntaxError struct {
	Line int
	What string
}

func (e *SyntaxError) Error() string { return fmt.Sprintf("line %d: %s has no end", e.Line, e.What) }

// scan splits a proto file into tokens.
func scan(source string) ([]token, error) {
	var tokens []token
	for at := 0; at < len(source); {
		rest := source[at:]
		length, comment := 1, false
		switch c := rest[0]; {
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			at++
			continue
		case strings.HasPrefix(rest, "//"):
			length, comment = endOf(rest, "\n", len(rest)), true
		case strings.HasPrefix(rest, "/*"):
			// From behind the opening: in "/*/" the star does not end what it began.
			length, comment = endOf(rest[2:], "*/", -2)+2, true
		case c == '"' || c == '\'':
			length = stringLength(rest)
		case wordChar(c):
			length = len(rest) - len(strings.TrimLeftFunc(rest, func(r rune) bool { return r < 0x80 && wordChar(byte(r)) }))
		}
		if length == 0 {
			what := "a string"
			if comment {
				what = "a comment"
			}
			return nil, &SyntaxError{Line: 1 + strings.Count(source[:at], "\n"), What: what}
		}
		if !comment {
			tokens = append(tokens, token{text: rest[:length], from: at, to: at + length})
		}
		at += length
	}
	return tokens, nil
}

func wordChar(c byte) bool {
	return c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

// endOf returns how long text is up to and with its first stop, or otherwise.
func endOf(text, stop string, otherwise int) int {
	if i := strings.Index(text, stop); i >= 0 {
		return i + len(stop)
	}
	return otherwise
}

// stringLength returns the length of the quoted string that text begins with, or 0 where it
// does not end on its line.
func stringLength(text string) int {
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '\n':
			return 0
		case text[0]:
			return i + 1
		}
	}
	return 0
}
