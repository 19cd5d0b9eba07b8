package protofiles

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	// The descriptors that the service itself serves.
	_ "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// served returns the descriptors that the service serves, without validation rules: what
// the files handed out must amount to.
func served(t *testing.T) map[string]*descriptorpb.FileDescriptorProto {
	t.Helper()
	out := map[string]*descriptorpb.FileDescriptorProto{}
	protoregistry.GlobalFiles.RangeFilesByPackage("leasehold.v1", func(fd protoreflect.FileDescriptor) bool {
		f := protodesc.ToFileDescriptorProto(fd)
		f.Dependency = slices.DeleteFunc(f.Dependency, func(d string) bool { return d == "buf/validate/validate.proto" })
		withoutRules(f.ProtoReflect())
		out[fd.Path()] = f
		return true
	})
	if len(out) != 6 {
		t.Fatalf("the service serves %d files", len(out))
	}
	return out
}

// withoutRules clears the extensions of buf.validate in a descriptor, and the options that
// are empty then.
func withoutRules(m protoreflect.Message) {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsExtension() && strings.HasPrefix(string(fd.FullName()), "buf.validate."):
			m.Clear(fd)
		case fd.IsMap() || fd.Message() == nil:
		case fd.IsList():
			for i := range v.List().Len() {
				withoutRules(v.List().Get(i).Message())
			}
		default:
			withoutRules(v.Message())
			if fd.Name() == "options" && proto.Size(v.Message().Interface()) == 0 {
				m.Clear(fd)
			}
		}
		return true
	})
}

// TestR6_FilesSpeakOfNoValidation and are complete.
func TestR6_FilesSpeakOfNoValidation(t *testing.T) {
	files, err := Files()
	if err != nil {
		t.Fatal(err)
	}
	for name := range served(t) {
		text, ok := files[name]
		if !ok {
			t.Errorf("%s is missing", name)
		}
		for _, word := range []string{"buf.validate", "buf/validate"} {
			if strings.Contains(string(text), word) {
				t.Errorf("%s still speaks of %q", name, word)
			}
		}
		if !strings.Contains(string(text), "\n// ") || strings.Contains(string(text), "\n\n\n") || strings.Contains(string(text), "\n\n}") {
			t.Errorf("%s does not look as if it had been written so:\n%s", name, text)
		}
	}
}

// TestR6_FilesDeclareWhatIsServed without a compiler: every package, import, message, field,
// number, value and method, by the outline of both.
func TestR6_FilesDeclareWhatIsServed(t *testing.T) {
	files, err := Files()
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range served(t) {
		want := describe(f)
		got := outline(t, string(files[name]))
		slices.Sort(want)
		slices.Sort(got)
		for _, line := range want {
			if !slices.Contains(got, line) {
				t.Errorf("%s lacks: %s", name, line)
			}
		}
		for _, line := range got {
			if !slices.Contains(want, line) {
				t.Errorf("%s has: %s", name, line)
			}
		}
		if len(got) < 3 || len(got) != len(want) {
			t.Errorf("%s: %d declarations, want %d", name, len(got), len(want))
		}
	}
}

func TestWritePutsTheFilesWhereImportsFindThem(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not", "there", "yet")
	names, err := Write(dir)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.IsSorted(names) || len(names) != 6 {
		t.Errorf("wrote %v", names)
	}
	files, err := Files()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || string(text) != string(files[name]) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Write(dir); err != nil {
		t.Errorf("writing over it: %v", err)
	}
	if _, err := Write(filepath.Join(dir, names[0])); err == nil {
		t.Error("a file was taken for a folder")
	}
}
