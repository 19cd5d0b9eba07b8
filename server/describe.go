package server

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
)

// sizedFields are those whose size is a matter of TOO_LARGE: the request is in order, its
// content is too much.
var sizedFields = map[protoreflect.FullName]bool{
	"leasehold.v1.Payload.data":                true,
	"leasehold.v1.Payload.json":                true,
	"leasehold.v1.HeartbeatRequest.checkpoint": true,
}

// ruleFields names the field to blame where a rule spans several.
var ruleFields = map[string]string{
	"acquire_lease.queues_or_job_id": "queues",
	"acquire_lease.max_jobs_of_one":  "max_jobs",
	"enqueue.run_at_or_delay":        "delay",
	"job_selection.ids_or_filter":    "job_ids",
}

// patternTexts says in words what the patterns of the proto allow.
var patternTexts = map[string]string{
	`^[a-z0-9][a-z0-9._-]{0,127}$`: "must be a queue name: [a-z0-9][a-z0-9._-]{0,127}",
	`^[1-9][0-9]{0,18}$`:           "must be a job id: a decimal number, as Enqueue answers it",
	`^[a-z0-9._-]{1,64}$`:          "must have keys of [a-z0-9._-]{1,64}",
	`^[^\x00]*$`:                   "must not contain NUL (U+0000)",
}

// describe turns a broken rule into the field and the bound, in words that say what to do.
func describe(b *protovalidate.Violation) violation {
	rule := b.Proto.GetRuleId()
	v := violation{
		field:       protovalidate.FieldPathString(b.Proto.GetField()),
		description: b.Proto.GetMessage(),
	}
	if f, ok := ruleFields[rule]; ok {
		v.field = strings.TrimPrefix(v.field+"."+f, ".")
		return v
	}
	if text := describeRule(rule, b); text != "" {
		v.description = text
	}
	if b.FieldDescriptor != nil {
		v.tooLarge = sizedFields[b.FieldDescriptor.FullName()]
	}
	// The value of one header above the size of all headers together.
	if strings.HasPrefix(v.field, "headers[") || strings.Contains(v.field, ".headers[") {
		v.tooLarge = rule == "string.max_bytes"
	}
	return v
}

func describeRule(rule string, b *protovalidate.Violation) string {
	rules := fieldRules(b)
	kind, _, _ := strings.Cut(rule, ".")
	switch kind {
	case "duration":
		d := rules.GetDuration()
		return between(spell(d.GetGte()), spell(d.GetLte()), got(b))
	case "int32":
		n := rules.GetInt32()
		return between(strconv.Itoa(int(n.GetGte())), strconv.Itoa(int(n.GetLte())), got(b))
	case "double":
		n := rules.GetDouble()
		return between(formatFloat(n.GetGte()), formatFloat(n.GetLte()), got(b))
	case "bytes":
		return sized(0, rules.GetBytes().GetMaxLen(), "bytes", b)
	case "required":
		if b.FieldDescriptor == nil {
			return "exactly one of its fields must be set"
		}
		return "is required"
	}
	switch rule {
	case "enum.not_in":
		return "must not be unspecified"
	case "enum.defined_only":
		return "must be a value that the enum defines, got " + got(b)
	case "string.pattern":
		return patternTexts[b.RuleValue.String()]
	case "string.min_bytes", "string.max_bytes":
		s := rules.GetString()
		if s.GetMaxBytes() == 0 {
			return "" // of the items of a list or map, whose own message names the bound
		}
		return sized(s.GetMinBytes(), s.GetMaxBytes(), "bytes", b)
	case "repeated.min_items", "repeated.max_items":
		return sized(rules.GetRepeated().GetMinItems(), rules.GetRepeated().GetMaxItems(), "items", b)
	case "repeated.unique":
		return "must not name the same value twice"
	case "map.max_pairs":
		return sized(0, rules.GetMap().GetMaxPairs(), "entries", b)
	}
	return ""
}

// fieldRules finds the rules of the field; empty ones where the violation is of an item.
func fieldRules(b *protovalidate.Violation) *validate.FieldRules {
	if b.FieldDescriptor == nil {
		return nil
	}
	rules, err := protovalidate.ResolveFieldRules(b.FieldDescriptor)
	if err != nil {
		return nil // the library's own message then stands
	}
	return rules
}

func between(low, high, value string) string {
	return "must be between " + low + " and " + high + ", got " + value
}

func sized(low, high uint64, unit string, b *protovalidate.Violation) string {
	if high == 0 {
		return ""
	}
	if low > 0 {
		return fmt.Sprintf("must have %d to %d %s, got %s", low, high, unit, got(b))
	}
	return fmt.Sprintf("must have at most %d %s, got %s", high, unit, got(b))
}

// got names the value that broke the rule: numbers and times as they are, everything else
// by its size, because content and tokens do not belong in an error.
func got(b *protovalidate.Violation) string {
	if !b.FieldValue.IsValid() {
		return "none"
	}
	switch v := b.FieldValue.Interface().(type) {
	case string:
		return strconv.Itoa(len(v))
	case []byte:
		return strconv.Itoa(len(v))
	case protoreflect.List:
		return strconv.Itoa(v.Len())
	case protoreflect.Map:
		return strconv.Itoa(v.Len())
	case protoreflect.Message:
		if d, ok := v.Interface().(*durationpb.Duration); ok {
			return gotDuration(d)
		}
		return "a message"
	case float64:
		return formatFloat(v)
	default:
		return fmt.Sprint(v)
	}
}

// gotDuration keeps what time.Duration would saturate: 10,000 years are not 292.
func gotDuration(d *durationpb.Duration) string {
	if limit := math.MaxInt64 / int64(time.Second); d.GetSeconds() >= limit || d.GetSeconds() <= -limit {
		return strconv.FormatInt(d.GetSeconds(), 10) + " s"
	}
	return d.AsDuration().String()
}

func formatFloat(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }

// spell writes a bound in the largest unit that fits it: "1 s", "12 h", "30 days".
func spell(d *durationpb.Duration) string {
	const minute, hour, day = 60, 3600, 86400
	switch s := d.GetSeconds(); {
	case s >= 2*day && s%day == 0:
		return strconv.FormatInt(s/day, 10) + " days"
	case s == day:
		return "1 day"
	case s >= hour && s%hour == 0:
		return strconv.FormatInt(s/hour, 10) + " h"
	case s > minute && s%minute == 0:
		return strconv.FormatInt(s/minute, 10) + " min"
	default:
		return strconv.FormatInt(s, 10) + " s"
	}
}
