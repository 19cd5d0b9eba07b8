package server

import (
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
)

type remedy struct {
	kind pb.Remedy
	text string
}

// remedies says what an operator can do about each diagnosis.
var remedies = map[store.Diagnosis]remedy{
	store.Held: {pb.Remedy_REMEDY_DECIDE,
		"Find out whether the work took effect. If it did, ResolveJob as completed; if it never will, ResolveJob as dead; else RetryJobs or CancelJobs."},
	store.CrashLoop: {pb.Remedy_REMEDY_FIX_THEN_RETRY,
		"The last three leases expired: the job may kill its workers. Look at the payload and at the workers that held it, mend one of them, then RetryJobs."},
	store.Overrun: {pb.Remedy_REMEDY_RAISE_MAX_RUNTIME,
		"The job does not fit into its max_runtime. Raise max_runtime in the policy, or make the job shorter."},
	store.LeaseExpired: {pb.Remedy_REMEDY_WAIT_FOR_WATCHER,
		"Nothing: the watcher ends the lease within its interval. If it does not, look at the service's readiness."},
	store.Stalled: {pb.Remedy_REMEDY_INSPECT_WORKER,
		"The worker sends heartbeats but its stage, progress and checkpoint stand still. Look at the worker named by lease_owner."},
	store.NeverHeartbeated: {pb.Remedy_REMEDY_ADD_HEARTBEATS,
		"The worker has sent no heartbeat since the lease began. Make it send heartbeats, or lengthen lease_duration beyond the job's longest run."},
	store.WorkerSilent: {pb.Remedy_REMEDY_INSPECT_WORKER,
		"Heartbeats came and have stopped. Look at the worker named by lease_owner; the lease ends by itself if they stay away."},
}

func stuckOut(j *store.StuckJob) *pb.StuckJob {
	r := remedies[j.Diagnosis]
	return &pb.StuckJob{
		JobId:        formatID(j.JobID),
		Queue:        j.Queue,
		State:        pb.JobState(j.State),
		Subject:      j.Subject,
		Diagnosis:    pb.Diagnosis(j.Diagnosis),
		Remedy:       r.kind,
		RemedyText:   r.text,
		Since:        timestamppb.New(j.Since),
		LeaseOwner:   j.Owner,
		LeaseNo:      j.LeaseNo,
		LeaseUntil:   timeOut(j.LeaseUntil),
		LastBeatAt:   timeOut(j.LastBeatAt),
		Stage:        j.Stage,
		AttemptsUsed: j.AttemptsUsed,
		MaxAttempts:  j.MaxAttempts,
		Expirations:  j.Expirations,
	}
}

func stuckFilterIn(r *pb.ListStuckRequest) store.StuckFilter {
	f := store.StuckFilter{Queue: r.Queue}
	for _, d := range r.GetDiagnoses() {
		f.Diagnoses = append(f.Diagnoses, store.Diagnosis(d))
	}
	return f
}
