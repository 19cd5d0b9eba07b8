//go:build full

package main

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/internal/doctest"
	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
)

// TestAlertsFire: each rule fires on series that have its condition, and on no others of the
// same test.
func TestAlertsFire(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(doctest.Root(t), "deploy", "prometheus")
	cases, err := os.ReadFile(filepath.Join(folder, "alerts_test.yml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range alertRules(t) {
		if !strings.Contains(string(cases), "alertname: "+r.Alert+"\n") {
			t.Errorf("alerts_test.yml has no case of %s", r.Alert)
		}
	}
	cmd := exec.CommandContext(t.Context(), "promtool", "test", "rules", "alerts_test.yml")
	cmd.Dir = folder
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, said)
	}
}

// prometheusOf starts a Prometheus that scrapes a replica each second and has the alert rules,
// and returns its address.
func prometheusOf(t *testing.T, target string) string {
	t.Helper()
	folder := t.TempDir()
	config := filepath.Join(folder, "prometheus.yml")
	text := fmt.Sprintf("global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [%q]\n"+
		"scrape_configs:\n  - job_name: leasehold\n    static_configs: [{targets: [%q]}]\n",
		filepath.Join(doctest.Root(t), "deploy", "prometheus", "alerts.yml"), target)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 3 { // somebody else may take the port before it does
		address := freeAddress(t)
		cmd := exec.CommandContext(t.Context(), "prometheus", "--config.file="+config, "--storage.tsdb.path="+filepath.Join(folder, "data"),
			"--web.listen-address="+address, "--log.level=error")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() { defer close(ended); _ = cmd.Wait() }() // killed at the end of the test
		t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
		up := false
		eventually(t, "a Prometheus", func() bool {
			select {
			case <-ended:
				return true
			default:
			}
			code, _ := get(t, "http://"+address+"/-/ready")
			up = code == 200
			return up
		})
		if up {
			return address
		}
	}
	t.Fatal("no Prometheus came up")
	return ""
}

// work makes one of each: a job that is completed, one that fails, and one whose worker never
// comes back, in a queue that holds such jobs.
func work(t *testing.T, address string) {
	t.Helper()
	conn := dial(t, address)
	queues, jobs, leases := pb.NewQueueServiceClient(conn), pb.NewJobServiceClient(conn), pb.NewLeaseServiceClient(conn)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := queues.CreateQueue(t.Context(), &pb.CreateQueueRequest{Queue: &pb.Queue{Name: "payments", OnExpiry: pb.OnExpiry_ON_EXPIRY_HOLD}})
	must(err)
	for range 4 {
		_, err := jobs.Enqueue(t.Context(), &pb.EnqueueRequest{Queue: "payments"})
		must(err)
	}
	lease := func(length time.Duration) string {
		resp, err := leases.AcquireLease(t.Context(), &pb.AcquireLeaseRequest{
			Queues: []string{"payments"}, LeaseOwner: "w/1", LeaseDuration: durationpb.New(length),
		})
		must(err)
		return resp.GetLeases()[0].GetLeaseToken()
	}
	first, second := lease(time.Hour), lease(time.Hour)
	lease(time.Second)
	_, err = leases.Heartbeat(t.Context(), &pb.HeartbeatRequest{LeaseToken: first})
	must(err)
	_, err = leases.Complete(t.Context(), &pb.CompleteRequest{LeaseToken: first})
	must(err)
	_, err = leases.Fail(t.Context(), &pb.FailRequest{LeaseToken: second, Error: &pb.JobError{Code: "x"}, Permanent: true})
	must(err)
}

// answered asks Prometheus and returns how many series it answers with.
func answered(t *testing.T, address, expr string) int {
	t.Helper()
	_, body := get(t, "http://"+address+"/api/v1/query?query="+url.QueryEscape(expr))
	var answer struct {
		Status, Error string
		Data          struct{ Result []any }
	}
	if err := json.Unmarshal([]byte(body), &answer); err != nil || answer.Error != "" {
		t.Fatalf("%s: %v %s", expr, err, answer.Error)
	}
	return len(answer.Data.Result)
}

// TestPanelsHaveData: a real Prometheus that scrapes a real service answers the query of each
// panel, and a job that is stuck raises its alert.
func TestPanelsHaveData(t *testing.T) {
	t.Parallel()
	p := beginService(t, "serve", "--database-url", pgtest.Database(t, nil), "--watcher-interval", "1s")
	grpcAddress, httpAddress := p.addresses(t)
	work(t, grpcAddress)
	prometheus := prometheusOf(t, httpAddress)
	variables := strings.NewReplacer("$queue", ".*", "$__rate_interval", "1m")
	for _, panel := range dashboardPanels(t) {
		for _, target := range panel.Targets {
			expr := variables.Replace(target.Expr)
			eventually(t, "data of panel "+panel.Title+": "+expr, func() bool { return answered(t, prometheus, expr) > 0 })
		}
	}
	for _, r := range alertRules(t) {
		answered(t, prometheus, r.Expr) // one that cannot be evaluated fails the test
	}
	eventually(t, "the alert of a stuck job", func() bool {
		return answered(t, prometheus, `ALERTS{alertname="LeaseholdJobsStuck",queue="payments"}`) == 1
	})
}
