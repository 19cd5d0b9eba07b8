package server

import (
	"strings"
	"testing"
	"time"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/server/identity"
)

// adminToken may prepare everything.
var adminToken = identity.NewToken{Name: "admin", Roles: []string{"operator", "worker"}, Queues: []string{"*"}}

var jobTimeZero = time.Unix(0, 0)

// TestPayloadsAreShownToThoseWhoMaySeeThem: a worker sees those of its leases, an operator
// all, a viewer facts only unless its entry says more.
func TestPayloadsAreShownToThoseWhoMaySeeThem(t *testing.T) {
	s := serveSecured(t, newStore(t, "q", "other"), "")
	admin := s.as(t, s.entry(t, adminToken))
	blind := s.as(t, s.token(t, "viewer", "q"))
	blindEverywhere := s.as(t, s.token(t, "viewer", "*"))
	operator := s.as(t, s.token(t, "operator", "q"))
	seeing := s.as(t, s.entry(t, identity.NewToken{Name: "seeing", Roles: []string{"viewer"}, Queues: []string{"q"}, Payloads: true}))
	s.access.Pass(t.Context())
	id := scene{t, admin, "q"}.dead()
	scene{t, admin, "other"}.dead()

	for name, c := range map[string]struct {
		caller api
		sees   bool
	}{
		"viewer": {blind, false}, "viewer of all": {blindEverywhere, false}, "operator": {operator, true}, "viewer with payloads": {seeing, true},
	} {
		full := &pb.GetJobRequest{By: &pb.GetJobRequest_JobId{JobId: id}, View: pb.JobView_JOB_VIEW_FULL}
		got, err := c.caller.jobs.GetJob(t.Context(), full)
		if c.sees != (err == nil) || c.sees != strings.Contains(got.String(), "planted") {
			t.Errorf("%s: GetJob in full: %v, %v", name, got, err)
		}
		if reason, _, facts := refusal(err); !c.sees && (reason != "ROLE_MISSING" || facts["role"] != "OPERATOR" || facts["queue"] != "q") {
			t.Errorf("%s: refused with %v", name, err)
		}
		for what, text := range basics(t, c.caller, id) {
			if !strings.Contains(text, "broke") || c.sees != strings.Contains(text, "planted details") {
				t.Errorf("%s: %s shows %s", name, what, text)
			}
		}
	}
	all, err := blindEverywhere.jobs.ListJobs(t.Context(), &pb.ListJobsRequest{View: pb.JobView_JOB_VIEW_FULL})
	if err != nil || len(all.GetJobs()) != 2 || strings.Contains(all.String(), "planted") {
		t.Errorf("a list over queues: %v, %v", all, err)
	}
	worker := s.as(t, s.token(t, "worker", "q"))
	fresh := scene{t, admin, "q"}.job()
	leased, err := worker.leases.AcquireLease(t.Context(), &pb.AcquireLeaseRequest{JobId: &fresh, LeaseOwner: "w"})
	if err != nil || !strings.Contains(leased.String(), "planted") {
		t.Errorf("the worker's own lease: %v, %v", leased, err)
	}
}

// basics are the answers that a viewer may ask for, as text.
func basics(t *testing.T, a api, id string) map[string]string {
	t.Helper()
	n := int32(5)
	job, err := a.jobs.GetJob(t.Context(), &pb.GetJobRequest{By: &pb.GetJobRequest_JobId{JobId: id}, RecentLeases: &n})
	leases, leasesErr := a.jobs.ListLeases(t.Context(), &pb.ListLeasesRequest{JobId: id})
	q := "q"
	list, listErr := a.jobs.ListJobs(t.Context(), &pb.ListJobsRequest{Filter: &pb.JobFilter{Queue: &q}})
	if err := firstError(err, leasesErr, listErr); err != nil {
		t.Fatal(err)
	}
	return map[string]string{"GetJob": job.String(), "ListLeases": leases.String(), "ListJobs": list.String()}
}
