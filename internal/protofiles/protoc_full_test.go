//go:build full

package protofiles

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
)

// protoc compiles all files with nothing but what protoc brings along.
// Its output goes where each flag ends: a folder, or the file "set" in it.
func protoc(t *testing.T, args ...string) string {
	t.Helper()
	dir := t.TempDir()
	names, err := Write(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	if args[0] == "--descriptor_set_out=" {
		out = filepath.Join(out, "set")
	}
	for i := range args {
		args[i] += out
	}
	args = append(append(args, "-I", dir), names...)
	said, err := exec.CommandContext(t.Context(), "protoc", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("protoc: %v\n%s", err, said)
	}
	if len(said) != 0 {
		t.Errorf("protoc warns:\n%s", said)
	}
	return out
}

func TestR6_PlainProtocCompilesForOtherLanguages(t *testing.T) {
	out := protoc(t, "--python_out=", "--cpp_out=", "--java_out=")
	for _, name := range []string{
		"leasehold/v1/lease_service_pb2.py", "leasehold/v1/options_pb2.py",
		"leasehold/v1/lease_service.pb.cc", "leasehold/v1/job.pb.h",
		"dev/leasehold/v1/AcquireLeaseRequest.java",
	} {
		if info, err := os.Stat(filepath.Join(out, name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestR6_ProtocSeesWhatIsServed, down to the roles of the methods.
func TestR6_ProtocSeesWhatIsServed(t *testing.T) {
	out := protoc(t, "--descriptor_set_out=")
	raw, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	var set descriptorpb.FileDescriptorSet
	if err := proto.Unmarshal(raw, &set); err != nil {
		t.Fatal(err)
	}
	want := served(t)
	for _, got := range set.GetFile() {
		if !proto.Equal(got, want[got.GetName()]) {
			t.Errorf("%s: protoc sees\n%v\nthe service serves\n%v", got.GetName(), got, want[got.GetName()])
		}
	}
	if len(set.GetFile()) != len(want) {
		t.Errorf("protoc sees %d files, want %d", len(set.GetFile()), len(want))
	}
}
