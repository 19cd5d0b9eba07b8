package operate

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// clean shows a text that somebody else wrote: what would move the cursor, colour, or turn the
// direction of writing becomes visible, and so do line breaks.
func clean(s string) string {
	ok := func(r rune) bool { return unicode.IsPrint(r) && r != utf8.RuneError }
	if !strings.ContainsFunc(s, func(r rune) bool { return !ok(r) }) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if ok(r) {
			b.WriteRune(r)
			continue
		}
		quoted := strconv.QuoteRune(r)
		b.WriteString(quoted[1 : len(quoted)-1])
	}
	return b.String()
}

// cut is clean, and no longer than n runes.
func cut(s string, n int) string {
	runes := []rune(clean(s))
	if len(runes) <= n {
		return string(runes)
	}
	return string(runes[:n-1]) + "…"
}

// cutBytes cuts to n bytes on a rune boundary.
func cutBytes(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// word is the name of an enum value without its prefix, in lower case with hyphens.
func word(value fmt.Stringer, prefix string) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(value.String(), prefix)), "_", "-")
}

// upper is the name of an enum value without its prefix.
func upper(value fmt.Stringer, prefix string) string {
	return strings.TrimPrefix(value.String(), prefix)
}

// length is a duration for people: two units at most.
func length(d time.Duration) string {
	switch {
	case d < 0:
		return "-" + length(-d)
	case d == 0:
		return "0s"
	case d < time.Second:
		return max(d.Round(time.Millisecond), time.Millisecond).String()
	case d < 10*time.Second:
		return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + "s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < 2*time.Hour:
		return pair(d, time.Minute, "m", time.Second, "s")
	case d < 48*time.Hour:
		return pair(d, time.Hour, "h", time.Minute, "m")
	default:
		return pair(d, 24*time.Hour, "d", time.Hour, "h")
	}
}

func pair(d, big time.Duration, bigName string, small time.Duration, smallName string) string {
	text := fmt.Sprintf("%d%s", d/big, bigName)
	if rest := d % big / small; rest > 0 {
		text += fmt.Sprintf("%d%s", rest, smallName)
	}
	return text
}

// relative is a time for people.
func relative(now time.Time, t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	switch d := t.AsTime().Sub(now); {
	case d > -time.Second && d < time.Second:
		return "now"
	case d < 0:
		return length(-d) + " ago"
	default:
		return "in " + length(d)
	}
}

// number has commas, as 12,345.
func number[N int | int32 | int64](n N) string {
	digits := strconv.FormatInt(int64(n), 10)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return number(n) + " " + what + "s"
}

// span is a duration flag that knows days: 7d, 36h, 90s.
type span struct{ d **durationpb.Duration }

// String is pflag.Value.
func (s span) String() string {
	if s.d == nil || *s.d == nil {
		return ""
	}
	return (*s.d).AsDuration().String()
}

// Set is pflag.Value.
func (s span) Set(text string) error {
	d, err := parseSpan(text)
	if err == nil {
		*s.d = durationpb.New(d)
	}
	return err
}

// Type is pflag.Value.
func (span) Type() string { return "duration" }

func parseSpan(text string) (time.Duration, error) {
	days, rest, has := strings.Cut(text, "d")
	if !has {
		return time.ParseDuration(text)
	}
	n, err := strconv.ParseUint(days, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("%q is no duration, as 7d, 36h or 90s", text)
	}
	d := time.Duration(n) * 24 * time.Hour
	if rest == "" {
		return d, nil
	}
	more, err := time.ParseDuration(rest)
	return d + more, err
}

// moment is a time flag: RFC 3339, or a duration, which is so long ago.
type moment struct{ t **timestamppb.Timestamp }

// String is pflag.Value.
func (m moment) String() string {
	if m.t == nil || *m.t == nil {
		return ""
	}
	return (*m.t).AsTime().Format(time.RFC3339)
}

// Set is pflag.Value.
func (m moment) Set(text string) error {
	if ago, err := parseSpan(text); err == nil {
		*m.t = timestamppb.New(time.Now().Add(-ago))
		return nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return fmt.Errorf("%q is neither a time as 2026-01-31T15:04:05Z nor a duration as 2h, which is so long ago", text)
	}
	*m.t = timestamppb.New(at)
	return nil
}

// Type is pflag.Value.
func (moment) Type() string { return "time" }
