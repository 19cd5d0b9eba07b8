package store

import (
	"strings"
	"unicode/utf8"
)

// cutMark ends a text that was cut.
const cutMark = "…[cut]"

// CleanJobError cuts the texts of a report to their sizes, on a rune's boundary and with a
// mark, and replaces what PostgreSQL cannot hold. A report is never refused for its bytes.
func CleanJobError(e JobError) JobError {
	return JobError{
		Code:    cleanText(e.Code, MaxErrorCodeBytes),
		Message: cleanText(e.Message, MaxErrorTextBytes),
		Details: cleanText(e.Details, MaxErrorTextBytes),
	}
}

func cleanText(text string, limit int) string {
	// Cut first, so that a report of megabytes costs no more than one of kilobytes.
	cut := len(text) > limit
	if cut {
		text = text[:limit]
	}
	text = strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", "\uFFFD"), "\uFFFD")
	if !cut && len(text) <= limit {
		return text
	}
	end := min(len(text), limit-len(cutMark))
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + cutMark
}
