package protofiles

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/descriptorpb"
)

// outline reads the declarations of a proto file, one line each, with the name of what
// encloses them: "GetJobRequest: string job_id = 1". It knows as much of the language as the
// files of the API use.
func outline(t *testing.T, source string) []string {
	t.Helper()
	tokens, err := scan(source)
	if err != nil {
		t.Fatal(err)
	}
	var lines, scope []string
	var words []string
	for _, tok := range tokens {
		switch tok.text {
		case "{":
			if isOptionValue(words) {
				words = append(words, "{")
				scope = append(scope, "")
				continue
			}
			lines = append(lines, declare(scope, words)...)
			scope = append(scope, words[1])
			words = nil
		case "}":
			if last := scope[len(scope)-1]; last == "" {
				words = append(words, "}")
			} else {
				words = nil
			}
			scope = scope[:len(scope)-1]
		case ";":
			lines = append(lines, declare(scope, words)...)
			words = nil
		default:
			words = append(words, tok.text)
		}
	}
	if len(scope) != 0 || len(words) != 0 {
		t.Errorf("the file ends within %v %v", scope, words)
	}
	return lines
}

// isOptionValue tells whether a brace belongs to the value of an option.
func isOptionValue(words []string) bool {
	return len(words) > 0 && (words[0] == "option" || strings.Contains(strings.Join(words, ""), "=["))
}

// declare makes the line of one declaration; options have none.
func declare(scope, words []string) []string {
	if len(words) == 0 || words[0] == "option" || words[0] == "syntax" {
		return nil
	}
	text := strings.Join(words, " ")
	for _, sign := range []string{" . ", " < ", " > ", " , ", " ( ", " ) "} {
		text = strings.ReplaceAll(text, sign, strings.TrimSpace(sign))
	}
	text = strings.TrimSuffix(text, " )")
	return []string{strings.Join(scope, ".") + ": " + strings.Trim(text, " ")}
}

// describe makes the same lines from a descriptor.
func describe(f *descriptorpb.FileDescriptorProto) []string {
	d := &describer{pkg: "." + f.GetPackage() + "."}
	d.add("", "package "+f.GetPackage())
	for _, path := range f.GetDependency() {
		d.add("", fmt.Sprintf("import %q", path))
	}
	for _, e := range f.GetEnumType() {
		d.enum("", e)
	}
	for _, m := range f.GetMessageType() {
		d.message("", m)
	}
	for _, s := range f.GetService() {
		d.add("", "service "+s.GetName())
		for _, m := range s.GetMethod() {
			d.add(s.GetName(), fmt.Sprintf("rpc %s(%s)returns(%s", m.GetName(), d.short(m.GetInputType()), d.short(m.GetOutputType())))
		}
	}
	for _, e := range f.GetExtension() {
		extended := strings.TrimPrefix(e.GetExtendee(), ".")
		d.add("", "extend "+extended)
		d.add("google", d.field(e, nil))
	}
	return d.lines
}

type describer struct {
	pkg   string
	lines []string
}

func (d *describer) add(scope, line string) { d.lines = append(d.lines, scope+": "+line) }

// short is a type's name as the file writes it.
func (d *describer) short(name string) string {
	return strings.TrimPrefix(strings.TrimPrefix(name, d.pkg), ".")
}

func (d *describer) enum(scope string, e *descriptorpb.EnumDescriptorProto) {
	d.add(scope, "enum "+e.GetName())
	for _, v := range e.GetValue() {
		d.add(join(scope, e.GetName()), fmt.Sprintf("%s = %d", v.GetName(), v.GetNumber()))
	}
}

func (d *describer) message(scope string, m *descriptorpb.DescriptorProto) {
	d.add(scope, "message "+m.GetName())
	inner := join(scope, m.GetName())
	maps := map[string]*descriptorpb.DescriptorProto{}
	for _, n := range m.GetNestedType() {
		if n.GetOptions().GetMapEntry() {
			maps[d.pkg+inner+"."+n.GetName()] = n
			continue
		}
		d.message(inner, n)
	}
	for _, e := range m.GetEnumType() {
		d.enum(inner, e)
	}
	seen := map[int32]bool{}
	for _, f := range m.GetField() {
		where := inner
		if f.OneofIndex != nil && !f.GetProto3Optional() {
			one := m.GetOneofDecl()[f.GetOneofIndex()].GetName()
			if where = join(inner, one); !seen[f.GetOneofIndex()] {
				d.add(inner, "oneof "+one)
			}
			seen[f.GetOneofIndex()] = true
		}
		d.add(where, d.field(f, maps[f.GetTypeName()]))
	}
}

func (d *describer) field(f *descriptorpb.FieldDescriptorProto, entry *descriptorpb.DescriptorProto) string {
	typ := strings.ToLower(strings.TrimPrefix(f.GetType().String(), "TYPE_"))
	if f.GetTypeName() != "" {
		typ = d.short(f.GetTypeName())
	}
	label := ""
	switch {
	case entry != nil:
		typ = fmt.Sprintf("map<%s>", strings.Join([]string{d.kind(entry.GetField()[0]), d.kind(entry.GetField()[1])}, ","))
	case f.GetLabel() == descriptorpb.FieldDescriptorProto_LABEL_REPEATED:
		label = "repeated "
	case f.GetProto3Optional():
		label = "optional "
	}
	return fmt.Sprintf("%s%s%s%s = %d", label, typ, spaceUnless(entry != nil), f.GetName(), f.GetNumber())
}

func (d *describer) kind(f *descriptorpb.FieldDescriptorProto) string {
	if f.GetTypeName() != "" {
		return d.short(f.GetTypeName())
	}
	return strings.ToLower(strings.TrimPrefix(f.GetType().String(), "TYPE_"))
}

func spaceUnless(closed bool) string {
	if closed {
		return ""
	}
	return " "
}

func join(scope, name string) string { return strings.TrimPrefix(scope+"."+name, ".") }
