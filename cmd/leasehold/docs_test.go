package main

import (
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/leasehold/leasehold/internal/doctest"
)

// contractGuide is run as a whole where grpcurl is (docs_full_test.go). What can be seen
// without it is seen here: that the shell takes the examples, and the API their requests.
const contractGuide = "docs/contract.md"

func TestContractGuideIsShell(t *testing.T) {
	t.Parallel()
	for _, e := range doctest.Read(t, contractGuide).Examples("sh") {
		cmd := exec.CommandContext(t.Context(), "sh", "-n")
		cmd.Stdin = strings.NewReader(e.Text)
		if said, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s:%d: %v: %s", contractGuide, e.Line, err, said)
		}
	}
}

func TestContractGuideAsksWhatTheAPITakes(t *testing.T) {
	t.Parallel()
	asked := map[string]bool{}
	for _, e := range doctest.Read(t, contractGuide).Examples("sh") {
		requests := requestsOf(e.Text)
		for _, r := range requests {
			asked[r.method] = true
			if err := r.check(); err != nil {
				t.Errorf("%s:%d: %s: %v", contractGuide, e.Line, r.method, err)
			}
		}
		if calls := strings.Count(e.Text, "call "); calls != len(requests) {
			t.Errorf("%s:%d: %d calls, of which %d were read", contractGuide, e.Line, calls, len(requests))
		}
	}
	for _, method := range []string{
		"JobService/Enqueue", "LeaseService/AcquireLease", "LeaseService/Heartbeat", "LeaseService/Complete",
		"LeaseService/Fail", "LeaseService/Release", "QueueService/PauseQueue", "QueueService/ResolveJob",
	} {
		if !asked[method] {
			t.Errorf("%s has no example of %s", contractGuide, method)
		}
	}
}

// request is one call of an example: the function `call` of the guide.
type request struct{ method, json string }

var callLine = regexp.MustCompile(`call (\w+/\w+) ('[^']*'(?:\$\w+'[^']*')*)`)

// requestsOf finds the calls of a block, with something in the place of shell variables.
func requestsOf(block string) []request {
	var found []request
	for _, m := range callLine.FindAllStringSubmatch(block, -1) {
		text := regexp.MustCompile(`'\$\w+'`).ReplaceAllString(m[2], "1")
		found = append(found, request{method: m[1], json: strings.Trim(text, "'")})
	}
	return found
}

// check reads a request as grpcurl does.
func (r request) check() error {
	name := protoreflect.FullName("leasehold.v1." + strings.Replace(r.method, "/", ".", 1))
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
	if err != nil {
		return err
	}
	method, is := found.(protoreflect.MethodDescriptor)
	if !is {
		return fmt.Errorf("%s is no method", name)
	}
	var message proto.Message = dynamicpb.NewMessage(method.Input())
	return protojson.Unmarshal([]byte(r.json), message)
}
