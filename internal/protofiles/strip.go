package protofiles

import (
	"maps"
	"slices"
	"strings"
)

// The rules of validation are imported from, and named in, this package.
const (
	rulesImport = `"buf/validate/validate.proto"`
	rulesOption = "(buf.validate."
)

// strip removes from a proto file whatever speaks of validation: the import, the statements
// `option (buf.validate.…) = …;` and the entries `(buf.validate.…) = …` of bracketed lists.
// It works on tokens, so that text in comments and strings is never taken for syntax.
func strip(source string) (string, error) {
	tokens, err := scan(source)
	if err != nil {
		return "", err
	}
	s := &stripper{source: source, tokens: tokens}
	for s.at < len(s.tokens) {
		switch {
		case s.startsStatement() && s.matches("import", rulesImport):
			s.cutStatement()
		case s.startsStatement() && s.matches("option") && s.isRule(s.at+1):
			s.cutStatement()
		case s.tokens[s.at].text == "[":
			s.filterList()
		default:
			s.at++
		}
	}
	return s.result(), nil
}

type stripper struct {
	source string
	tokens []token
	at     int
	cuts   []span // in order, not overlapping
}

// span is a part of the source.
type span struct{ from, to int }

// startsStatement tells whether a statement may begin at the current token.
func (s *stripper) startsStatement() bool {
	if s.at == 0 {
		return true
	}
	before := s.tokens[s.at-1].text
	return before == ";" || before == "{" || before == "}"
}

// matches tells whether the tokens from the current one are these.
func (s *stripper) matches(texts ...string) bool {
	for i, text := range texts {
		if s.at+i >= len(s.tokens) || s.tokens[s.at+i].text != text {
			return false
		}
	}
	return true
}

// isRule tells whether the tokens from i are the name of an option of validation.
func (s *stripper) isRule(i int) bool {
	var name strings.Builder
	for ; i < len(s.tokens) && name.Len() < len(rulesOption); i++ {
		name.WriteString(s.tokens[i].text)
	}
	return strings.HasPrefix(name.String(), rulesOption)
}

// cutStatement removes from the current token to the semicolon that ends the statement, with
// the lines that it fills.
func (s *stripper) cutStatement() {
	from := s.tokens[s.at].from
	end := s.skipTo(";")
	s.cut(s.wholeLines(span{from, s.tokens[end].to}))
	s.at = end + 1
}

// skipTo returns the index of the next token with this text outside of all brackets that
// open from the current one on, or of the last token.
func (s *stripper) skipTo(stops ...string) int {
	depth := 0
	for i := s.at; i < len(s.tokens); i++ {
		text := s.tokens[i].text
		if depth == 0 && slices.Contains(stops, text) {
			return i
		}
		switch text {
		case "{", "[", "(":
			depth++
		case "}", "]", ")":
			depth--
		}
	}
	return len(s.tokens) - 1
}

// filterList removes the entries about validation from the bracketed list that begins at the
// current token, and the brackets where nothing is left.
func (s *stripper) filterList() {
	open := s.at
	var keep []string
	removed := false
	for s.at < len(s.tokens) && s.tokens[s.at].text != "]" {
		s.at++
		from := s.at
		s.at = s.skipTo(",", "]")
		if s.isRule(from) {
			removed = true
		} else if from < s.at {
			keep = append(keep, s.source[s.tokens[from].from:s.tokens[s.at-1].to])
		}
	}
	end := min(s.at, len(s.tokens)-1)
	s.at = end + 1
	if !removed {
		return
	}
	from := s.tokens[open].from
	if len(keep) == 0 {
		s.cut(span{len(strings.TrimRight(s.source[:from], " \t\n")), s.tokens[end].to})
		return
	}
	s.cuts = append(s.cuts, span{from, s.tokens[end].to})
	s.tokens[open].instead = "[" + strings.Join(keep, ", ") + "]"
}

func (s *stripper) cut(part span) { s.cuts = append(s.cuts, part) }

// wholeLines grows a part to the lines that it fills.
func (s *stripper) wholeLines(part span) span {
	lead := strings.TrimRight(s.source[:part.from], " \t")
	rest := strings.TrimLeft(s.source[part.to:], " \t")
	if lead != "" && !strings.HasSuffix(lead, "\n") || !strings.HasPrefix(rest, "\n") {
		return part
	}
	return span{len(lead), len(s.source) - len(rest) + 1}
}

// merged joins the cuts that touch, and grows them over a blank line that would stand before
// a closing brace or another blank line: what is left must look as if it had been written so.
func (s *stripper) merged() []span {
	var out []span
	for _, c := range s.cuts {
		if last := len(out) - 1; last >= 0 && c.from <= out[last].to {
			out[last].to = c.to
			continue
		}
		out = append(out, c)
	}
	for i, c := range out {
		after := strings.TrimLeft(s.source[c.to:], " \t")
		if strings.HasSuffix(s.source[:c.from], "\n\n") && (strings.HasPrefix(after, "}") || strings.HasPrefix(after, "\n")) {
			out[i].from--
		}
	}
	return out
}

// result puts together what was not cut.
func (s *stripper) result() string {
	instead := map[int]string{}
	for _, t := range s.tokens {
		if t.instead != "" {
			instead[t.from] = t.instead
		}
	}
	var out strings.Builder
	at := 0
	for _, c := range s.merged() {
		out.WriteString(s.source[at:c.from])
		out.WriteString(instead[c.from])
		at = c.to
	}
	out.WriteString(s.source[at:])
	return out.String()
}

func sortedNames(files map[string][]byte) []string { return slices.Sorted(maps.Keys(files)) }
