package doctest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// documents are those for users; each is held to its links and commands.
var documents = []string{"README.md", "CHANGELOG.md", "docs/contract.md", "docs/sql.md", "docs/decisions.md", "docs/performance.md", "docs/reliability.md", "docs/operating.md", "docs/security.md", "docs/conformance.md", "docs/workers.md", "docs/upgrades.md", "docs/deployment.md", "docs/scaling.md", "docs/sidecar.md", "docs/observability.md", "docs/runbook.md", "examples/reconciliation/README.md"}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(Root(t), filepath.FromSlash(path)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestReadmeShowsTheWorker that is compiled and run, all of it but its imports.
func TestReadmeShowsTheWorker(t *testing.T) {
	t.Parallel()
	blocks := Read(t, "README.md").Blocks("go")
	if len(blocks) != 1 {
		t.Fatalf("%d Go blocks, want the worker", len(blocks))
	}
	head, is := strings.CutSuffix(read(t, "examples/go/main.go"), "\n\n"+blocks[0].Text)
	if !is || !strings.HasSuffix(head, ")") || strings.Contains(head, "func ") {
		t.Error("the README's worker is not what stands below the imports of examples/go/main.go")
	}
}

// TestGuideShowsTheHandler that the tests run.
func TestGuideShowsTheHandler(t *testing.T) {
	t.Parallel()
	blocks := Read(t, "docs/workers.md").Blocks("python")
	if len(blocks) != 1 || !strings.Contains(read(t, "examples/python/worker.py"), "\n\n"+blocks[0].Text) {
		t.Error("the guide's handler is not that of examples/python/worker.py")
	}
}

// TestReadmeHasEveryMethod, with the role that the proto demands.
func TestReadmeHasEveryMethod(t *testing.T) {
	t.Parallel()
	told := map[string]string{}
	for _, row := range Read(t, "README.md").Table(t, "API") {
		if row[2] == "" {
			t.Errorf("%s: nothing is said", row[0])
		}
		told[strings.Trim(row[0], "`")] = row[1]
	}
	for _, file := range []protoreflect.FileDescriptor{
		pb.File_leasehold_v1_lease_service_proto, pb.File_leasehold_v1_job_service_proto, pb.File_leasehold_v1_queue_service_proto,
	} {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				m := methods.Get(j)
				name := string(m.Parent().Name()) + "." + string(m.Name())
				role, _ := proto.GetExtension(m.Options(), pb.E_RequiredRole).(pb.Role)
				want := strings.ToLower(strings.TrimPrefix(role.String(), "ROLE_"))
				if told[name] != want {
					t.Errorf("%s needs the role %s, the README says %q", name, want, told[name])
				}
				delete(told, name)
			}
		}
	}
	for name := range told {
		t.Errorf("the README has %s, the API has not", name)
	}
}

// reasonInProto is a reason with the code that its comment begins with.
var reasonInProto = regexp.MustCompile(`(?m)^  // ([A-Z_]+)[,.].*\n(?:  //.*\n)*  ERROR_REASON_(\w+) = `)

// TestReadmeHasEveryReason, with its code.
func TestReadmeHasEveryReason(t *testing.T) {
	t.Parallel()
	told := map[string]string{}
	for _, row := range Read(t, "README.md").Table(t, "Errors") {
		if row[2] == "" {
			t.Errorf("%s: nothing is said", row[1])
		}
		told[strings.Trim(row[1], "`")] = strings.Trim(row[0], "`")
	}
	found := reasonInProto.FindAllStringSubmatch(read(t, "proto/leasehold/v1/errors.proto"), -1)
	if want := len(pb.ErrorReason_name) - 1; len(found) != want {
		t.Fatalf("%d reasons with a code in the proto, want %d", len(found), want)
	}
	for _, m := range found {
		if told[m[2]] != m[1] {
			t.Errorf("%s is %s, the README says %q", m[2], m[1], told[m[2]])
		}
		delete(told, m[2])
	}
	for reason := range told {
		t.Errorf("the README has %s, the proto has not", reason)
	}
}

var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// TestLinksLeadSomewhere: to a file of the repository, and to a heading of it.
func TestLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	for _, path := range documents {
		for _, m := range link.FindAllStringSubmatch(Read(t, path).Prose(), -1) {
			if strings.HasPrefix(m[1], "https://") {
				continue
			}
			file, anchor, _ := strings.Cut(m[1], "#")
			target := path
			if file != "" {
				target = filepath.ToSlash(filepath.Join(filepath.Dir(path), file))
			}
			if _, err := os.Stat(filepath.Join(Root(t), target)); err != nil {
				t.Errorf("%s: %s: %v", path, m[1], err)
			} else if anchor != "" && !hasAnchor(Read(t, target), anchor) {
				t.Errorf("%s: %s: no such heading", path, m[1])
			}
		}
	}
}

func hasAnchor(d *Document, anchor string) bool {
	for _, heading := range d.Headings() {
		if Anchor(heading) == anchor {
			return true
		}
	}
	return false
}

var makeCall = regexp.MustCompile("(?:^|`)make ([a-z-]+)")

// TestMakeTargetsExist that the documents name.
func TestMakeTargetsExist(t *testing.T) {
	t.Parallel()
	makefile := read(t, "Makefile")
	named := 0
	for _, path := range documents {
		for line := range strings.SplitSeq(read(t, path), "\n") {
			for _, m := range makeCall.FindAllStringSubmatch(line, -1) {
				named++
				if !strings.Contains(makefile, "\n"+m[1]+":") {
					t.Errorf("%s: there is no make %s", path, m[1])
				}
			}
		}
	}
	if named < 4 {
		t.Errorf("%d targets are named, want at least run, test, demo and help", named)
	}
}

// TestLayoutIsThatOfTheRepository: every folder that the README names is there.
func TestLayoutIsThatOfTheRepository(t *testing.T) {
	t.Parallel()
	folders := 0
	for _, b := range Read(t, "README.md").Blocks("text") {
		if b.Heading != "Layout" {
			continue
		}
		for line := range strings.SplitSeq(strings.TrimSpace(b.Text), "\n") {
			name := strings.Fields(line)[0]
			folders++
			if info, err := os.Stat(filepath.Join(Root(t), name)); err != nil || !info.IsDir() {
				t.Errorf("there is no folder %s", name)
			}
		}
	}
	if folders < 8 {
		t.Errorf("%d folders", folders)
	}
}
