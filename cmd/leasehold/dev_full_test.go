//go:build full

package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestTourWorksAsPrinted, in every shell that is there, twice, over TCP and a socket.
func TestTourWorksAsPrinted(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("grpcurl"); err != nil {
		t.Fatal(err)
	}
	for _, listen := range []string{"127.0.0.1:0", "unix:" + filepath.Join(t.TempDir(), "g")} {
		ready := filepath.Join(t.TempDir(), "ready")
		p := begin(t, nil, "dev", "--ephemeral", "--listen", listen, "--http", "127.0.0.1:0", "--ready-file", ready)
		p.ready = ready
		p.addresses(t)
		eventually(t, "the tour", func() bool { return strings.Contains(p.out.String(), "JobService/GetJob") })
		script := strings.Join(tourLines(p.out.String()), "\n")
		for _, shell := range []string{"sh", "dash", "bash", "zsh", "ksh"} {
			if _, err := exec.LookPath(shell); err != nil && shell != "sh" {
				continue
			}
			cmd := exec.CommandContext(t.Context(), shell)
			cmd.Stdin = strings.NewReader("set -eu\n" + script)
			said, err := cmd.CombinedOutput()
			for _, want := range []string{
				`"created": true`, `"leaseToken"`, `"nextHeartbeatIn": "200s"`, "JOB_STATE_COMPLETED",
				`{\"settled\":true}`, "LEASE_END_COMPLETED", `"stage": "psp_call"`,
			} {
				if err != nil || !strings.Contains(string(said), want) {
					t.Errorf("%s: %v, want %s in\n%s", shell, err, want, said)
				}
			}
		}
	}
}
