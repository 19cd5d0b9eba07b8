package servertest

import (
	"context"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/server/servertest/remote"
	"github.com/leasehold/leasehold/store"
)

// victim is a replica with a few jobs in every state, and what is stored of them.
type victim struct {
	*world
	queue     string
	live      *pb.Lease // PROCESSING
	ended     *pb.Lease // its job is PENDING again
	pending   string
	completed *pb.Lease
	cancelled string
	keyed     string // with the key "k" and the payload "first"
}

func newVictim(t *testing.T) *victim {
	t.Helper()
	w := newWorld(t)
	v := &victim{world: w, queue: w.queue(t)}
	put := func() string { return w.enqueue(t, &pb.EnqueueRequest{Queue: v.queue}) }
	v.live, v.ended, v.completed = w.lease(t, put()), w.lease(t, put()), w.lease(t, put())
	v.pending, v.cancelled = put(), put()
	v.keyed = w.enqueue(t, &pb.EnqueueRequest{Queue: v.queue, IdempotencyKey: to("k"), Payload: bytesOf("first")})
	w.release(t, v.ended)
	w.complete(t, v.completed, "done")
	accepted(t, w.jobs.CancelJob, &pb.CancelJobRequest{JobId: v.cancelled})
	return v
}

// tables is what is stored: of each table the number of rows and a digest of all of them.
func (d *database) tables(t testing.TB) map[string]string {
	t.Helper()
	ctx := context.Background()
	rows, err := d.SQL.Query(ctx, `SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'leasehold'::regnamespace
		AND c.relkind IN ('r', 'p') AND NOT c.relispartition`)
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	var parts []string
	for _, n := range names {
		parts = append(parts, fmt.Sprintf(`SELECT '%[1]s', count(*) || ' rows ' || md5(coalesce(string_agg(r::text, E'\n' ORDER BY r::text), ''))
			FROM leasehold.%[1]s r`, n))
	}
	rows, err = d.SQL.Query(ctx, strings.Join(parts, " UNION ALL "))
	if err != nil {
		t.Fatal(err)
	}
	stored := map[string]string{}
	var name, content string
	if _, err := pgx.ForEachRow(rows, []any{&name, &content}, func() error { stored[name] = content; return nil }); err != nil {
		t.Fatal(err)
	}
	return stored
}

// assertSame tells which tables differ.
func assertSame(t *testing.T, before, after map[string]string) {
	t.Helper()
	if len(before) == 0 {
		t.Fatal("there are no tables")
	}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if before[name] != after[name] {
			t.Errorf("table %s was changed: %s, before %s", name, after[name], before[name])
		}
	}
}

// attack is a call that must be refused, and change nothing.
type attack struct {
	name   string
	method string
	req    proto.Message
	code   codes.Code
	reason string
	field  string // of BadRequest, if any
	fact   string // "name=value" of the metadata, if any
}

const (
	leaseService = "/leasehold.v1.LeaseService/"
	jobService   = "/leasehold.v1.JobService/"
	queueService = "/leasehold.v1.QueueService/"
)

// TestBadInputStoresNothing is what the tests of the validation, which never reach a
// database, do not have: requests that are in order by themselves and wrong for what is
// stored, tokens of all kinds, what only a database would stumble over, and bytes that are
// no message. Each is refused with its reason, and no row of any table is changed.
func TestBadInputStoresNothing(t *testing.T) {
	t.Parallel()
	v := newVictim(t)
	before := v.db.tables(t)
	for _, a := range slices.Concat(v.contents(), v.strangers(), v.tokens(t), v.wrongStates()) {
		t.Run(strings.TrimPrefix(a.method, "/leasehold.v1.")+"/"+a.name, func(t *testing.T) {
			v.try(t, a)
			assertSame(t, before, v.db.tables(t))
		})
	}
	for name, run := range map[string]func(t *testing.T){
		"items": v.tryItems, "what gRPC itself answers": v.tryWire, "unknown fields": v.tryUnknownFields,
	} {
		t.Run(name, func(t *testing.T) {
			run(t)
			assertSame(t, before, v.db.tables(t))
		})
	}
	newer := wire(beat(v.live), field(999, "new")) // the lease lives on, and so does the connection
	if err := v.conn.Invoke(t.Context(), leaseService+"Heartbeat", newer, nil, grpc.ForceCodec(rawCodec{})); err != nil {
		t.Errorf("a newer client's heartbeat: %v", err)
	}
}

func (v *victim) try(t *testing.T, a attack) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callTime)
	defer cancel()
	var trailer metadata.MD
	// The answer is never read: any message takes it.
	err := v.conn.Invoke(ctx, a.method, a.req, &pb.DeleteQueueResponse{}, grpc.Trailer(&trailer))
	s := see(t, err, trailer)
	if s.status.Code() != a.code || s.info.GetReason() != a.reason || !slices.Equal(s.trailer, []string{a.reason}) {
		t.Fatalf("answered %v %s, trailer %v (%s); want %v %s",
			s.status.Code(), s.info.GetReason(), s.trailer, s.status.Message(), a.code, a.reason)
	}
	if a.field != "" && (len(s.fields) != 1 || s.fields[0].GetField() != a.field) {
		t.Errorf("fields %v, want %s", s.fields, a.field)
	}
	if name, value, ok := strings.Cut(a.fact, "="); ok && s.info.GetMetadata()[name] != value {
		t.Errorf("metadata %v, want %s", s.info.GetMetadata(), a.fact)
	}
	s.assertNoDriverText(t)
}

// contents are values that PostgreSQL would refuse, or keep otherwise than they came.
func (v *victim) contents() []attack {
	job := func(change func(*pb.EnqueueRequest)) *pb.EnqueueRequest {
		r := &pb.EnqueueRequest{Queue: v.queue}
		change(r)
		return r
	}
	nul := "a\x00b"
	return []attack{
		{"NUL in subject", jobService + "Enqueue", job(func(r *pb.EnqueueRequest) { r.Subject = &nul }), invalid, "INVALID_REQUEST", "subject", ""},
		{"NUL in a header", jobService + "Enqueue", job(func(r *pb.EnqueueRequest) { r.Headers = map[string]string{"h": nul} }), invalid, "INVALID_REQUEST", `headers["h"]`, ""},
		{"NUL in JSON", jobService + "Enqueue", job(func(r *pb.EnqueueRequest) {
			r.Payload = &pb.Payload{Content: &pb.Payload_Json{Json: "\"" + nul + "\""}}
		}), invalid, "INVALID_REQUEST", "payload.json", ""},
		{"2 MiB", jobService + "Enqueue", job(func(r *pb.EnqueueRequest) { r.Payload = bytesOf(strings.Repeat("x", 2<<20)) }), invalid, "TOO_LARGE", "payload.data", ""},
		{"NUL in stage", leaseService + "Heartbeat", &pb.HeartbeatRequest{LeaseToken: v.live.GetLeaseToken(), Stage: &nul}, invalid, "INVALID_REQUEST", "stage", ""},
		{"2 MiB of result", leaseService + "Complete", &pb.CompleteRequest{LeaseToken: v.live.GetLeaseToken(), Result: bytesOf(strings.Repeat("x", 2<<20))}, invalid, "TOO_LARGE", "result.data", ""},
		{"JSON that is none", leaseService + "Complete", &pb.CompleteRequest{LeaseToken: v.live.GetLeaseToken(), Result: &pb.Payload{Content: &pb.Payload_Json{Json: "{"}}}, invalid, "INVALID_REQUEST", "result.json", ""},
		{"NUL in a follow-up", leaseService + "Complete", &pb.CompleteRequest{LeaseToken: v.live.GetLeaseToken(), ThenEnqueue: []*pb.EnqueueRequest{{Queue: v.queue}, {Queue: v.queue, IdempotencyKey: &nul}}}, invalid, "INVALID_REQUEST", "then_enqueue[1].idempotency_key", ""},
		{"unknown queue of a follow-up", leaseService + "Complete", &pb.CompleteRequest{LeaseToken: v.live.GetLeaseToken(), ThenEnqueue: []*pb.EnqueueRequest{{Queue: v.queue}, {Queue: "nowhere"}}}, codes.NotFound, "QUEUE_NOT_FOUND", "", "then_enqueue_index=1"},
		{"reused key of a follow-up", leaseService + "Fail", &pb.FailRequest{LeaseToken: v.live.GetLeaseToken(), ThenEnqueue: []*pb.EnqueueRequest{{Queue: v.queue}, {Queue: v.queue, IdempotencyKey: to("k")}}}, codes.AlreadyExists, "IDEMPOTENCY_KEY_REUSED", "", "job_id=" + v.keyed},
		{"NUL in actor", queueService + "PauseQueue", &pb.PauseQueueRequest{Name: v.queue, Actor: nul}, invalid, "INVALID_REQUEST", "actor", ""},
		{"NUL in note", jobService + "CancelJob", &pb.CancelJobRequest{JobId: v.pending, Note: nul}, invalid, "INVALID_REQUEST", "note", ""},
		{"NUL in a filter", queueService + "CancelJobs", &pb.CancelJobsRequest{Selection: &pb.JobSelection{Filter: &pb.JobFilter{Subject: &nul}}}, invalid, "INVALID_REQUEST", "selection.filter.subject", ""},
		{"NUL in owner", leaseService + "AcquireLease", &pb.AcquireLeaseRequest{Queues: []string{v.queue}, LeaseOwner: nul}, invalid, "INVALID_REQUEST", "lease_owner", ""},
	}
}

// strangers are queues and jobs that do not exist.
func (v *victim) strangers() []attack {
	const q = "nowhere"
	anything := &pb.JobFilter{Queue: to(q)}
	noQueue := func(method string, req proto.Message) attack {
		return attack{"unknown queue", method, req, codes.NotFound, "QUEUE_NOT_FOUND", "", "queue=" + q}
	}
	noJob := func(method string, req proto.Message) attack {
		return attack{"unknown job", method, req, codes.NotFound, "JOB_NOT_FOUND", "", "job_id=" + nobody}
	}
	return []attack{
		noQueue(jobService+"Enqueue", &pb.EnqueueRequest{Queue: q}),
		noQueue(jobService+"GetJob", &pb.GetJobRequest{By: &pb.GetJobRequest_Key{Key: &pb.JobKey{Queue: q, IdempotencyKey: "k"}}}),
		noQueue(jobService+"ListJobs", &pb.ListJobsRequest{Filter: anything}),
		noQueue(leaseService+"AcquireLease", &pb.AcquireLeaseRequest{Queues: []string{v.queue, q}, LeaseOwner: "w"}),
		noQueue(queueService+"GetQueue", &pb.GetQueueRequest{Name: q}),
		noQueue(queueService+"DeleteQueue", &pb.DeleteQueueRequest{Name: q}),
		noQueue(queueService+"PauseQueue", &pb.PauseQueueRequest{Name: q}),
		noQueue(queueService+"ResumeQueue", &pb.ResumeQueueRequest{Name: q}),
		noQueue(queueService+"RetryJobs", &pb.RetryJobsRequest{Selection: &pb.JobSelection{Filter: anything}}),
		noQueue(queueService+"CancelJobs", &pb.CancelJobsRequest{Selection: &pb.JobSelection{Filter: anything}}),
		noJob(jobService+"GetJob", byID(nobody)),
		noJob(jobService+"ListLeases", &pb.ListLeasesRequest{JobId: nobody}),
		noJob(jobService+"CancelJob", &pb.CancelJobRequest{JobId: nobody}),
		noJob(leaseService+"AcquireLease", &pb.AcquireLeaseRequest{JobId: to(nobody), LeaseOwner: "w"}),
		noJob(queueService+"ResolveJob", &pb.ResolveJobRequest{JobId: nobody, Actor: "a", Note: "n", Resolution: &pb.ResolveJobRequest_Dead{Dead: &pb.ResolvedDead{}}}),
		{"unknown key", jobService + "GetJob", &pb.GetJobRequest{By: &pb.GetJobRequest_Key{Key: &pb.JobKey{Queue: v.queue, IdempotencyKey: "nobody's"}}}, codes.NotFound, "JOB_NOT_FOUND", "", "queue=" + v.queue},
	}
}

// tokens are handles that this database did not give, for each call that takes one.
func (v *victim) tokens(t *testing.T) (all []attack) {
	t.Helper()
	good := v.live.GetLeaseToken()
	raw, err := base64.RawURLEncoding.DecodeString(good)
	if err != nil {
		t.Fatal(err)
	}
	changed := func(at int) string {
		b := slices.Clone(raw)
		b[at] ^= 1
		return base64.RawURLEncoding.EncodeToString(b)
	}
	page := accepted(t, v.jobs.ListJobs, &pb.ListJobsRequest{Filter: &pb.JobFilter{Queue: &v.queue}, PageSize: to(int32(1))}).GetNextPageToken()
	ref := store.LeaseRef{JobID: remote.JobID(v.live.GetJob().GetJobId()), LeaseNo: 1}
	for name, token := range map[string]string{
		"garbage": "garbage", "another version": changed(0), "another job": changed(8), "another lease": changed(16), "another MAC": changed(len(raw) - 1),
		"half": good[:len(good)/2], "twice": good + good, "padded": good + "=", "with a space": " " + good, "upper case": strings.ToUpper(good),
		"other base64": strings.NewReplacer("-", "+", "_", "/").Replace(good) + "+", "a page token": page, "zeros": strings.Repeat("A", len(good)),
		"of another database": store.NewTokens(make([]byte, 32)).Seal(ref), "NUL": good + "\x00", "longest": strings.Repeat("a", 256),
	} {
		for method, req := range map[string]proto.Message{
			"Heartbeat": &pb.HeartbeatRequest{LeaseToken: token, Stage: to("stage"), Checkpoint: []byte("checkpoint")},
			"Complete":  &pb.CompleteRequest{LeaseToken: token, Result: bytesOf("result"), ThenEnqueue: []*pb.EnqueueRequest{{Queue: v.queue}}},
			"Fail":      &pb.FailRequest{LeaseToken: token, Error: &pb.JobError{Code: "code"}},
			"Release":   &pb.ReleaseRequest{LeaseToken: token},
		} {
			all = append(all, attack{name, leaseService + method, req, invalid, "INVALID_TOKEN", "lease_token", ""})
		}
	}
	for name, token := range map[string]string{"a lease token": good, "of another list": page, "garbage": "garbage", "NUL": page + "\x00"} {
		all = append(all,
			attack{name, leaseService + "ListStuck", &pb.ListStuckRequest{PageToken: token}, invalid, "INVALID_TOKEN", "page_token", ""},
			attack{name, jobService + "ListLeases", &pb.ListLeasesRequest{JobId: v.pending, PageToken: token}, invalid, "INVALID_TOKEN", "page_token", ""},
			attack{name, queueService + "ListQueues", &pb.ListQueuesRequest{PageToken: token}, invalid, "INVALID_TOKEN", "page_token", ""},
			attack{name, queueService + "CancelJobs", &pb.CancelJobsRequest{Selection: &pb.JobSelection{Filter: &pb.JobFilter{Queue: &v.queue}}, PageToken: token}, invalid, "INVALID_TOKEN", "page_token", ""},
		)
	}
	return all
}

// wrongStates are calls that what is stored does not allow.
func (v *victim) wrongStates() []attack {
	done, ended := v.completed.GetJob().GetJobId(), v.ended.GetLeaseToken()
	resolve := func(id string) *pb.ResolveJobRequest {
		return &pb.ResolveJobRequest{JobId: id, Actor: "a", Note: "n", Resolution: &pb.ResolveJobRequest_Completed{Completed: &pb.ResolvedCompleted{Result: bytesOf("x")}}}
	}
	return []attack{
		{"completed", jobService + "CancelJob", &pb.CancelJobRequest{JobId: done}, precondition, "WRONG_STATE", "", "state=COMPLETED"},
		{"completed", queueService + "ResolveJob", resolve(done), precondition, "WRONG_STATE", "", "state=COMPLETED"},
		{"pending", queueService + "ResolveJob", resolve(v.pending), precondition, "WRONG_STATE", "", "state=PENDING"},
		{"processing", queueService + "ResolveJob", resolve(v.live.GetJob().GetJobId()), precondition, "WRONG_STATE", "", "state=PROCESSING"},
		{"cancelled", queueService + "ResolveJob", resolve(v.cancelled), precondition, "WRONG_STATE", "", "state=CANCELLED"},
		{"with live jobs", queueService + "DeleteQueue", &pb.DeleteQueueRequest{Name: v.queue}, precondition, "WRONG_STATE", "", "queue=" + v.queue},
		{"exists", queueService + "CreateQueue", &pb.CreateQueueRequest{Queue: &pb.Queue{Name: v.queue}}, codes.AlreadyExists, "QUEUE_EXISTS", "", "queue=" + v.queue},
		{"key of another payload", jobService + "Enqueue", &pb.EnqueueRequest{Queue: v.queue, IdempotencyKey: to("k")}, codes.AlreadyExists, "IDEMPOTENCY_KEY_REUSED", "", "job_id=" + v.keyed},
		{"ended lease", leaseService + "Heartbeat", &pb.HeartbeatRequest{LeaseToken: ended, Stage: to("s"), Checkpoint: []byte("c")}, precondition, "LEASE_ENDED", "", "lease_end=RELEASED"},
		{"ended lease", leaseService + "Complete", &pb.CompleteRequest{LeaseToken: ended, ThenEnqueue: []*pb.EnqueueRequest{{Queue: v.queue}}}, precondition, "LEASE_ENDED", "", "state=PENDING"},
		{"ended lease", leaseService + "Fail", &pb.FailRequest{LeaseToken: ended, Error: &pb.JobError{Code: "c"}}, precondition, "LEASE_ENDED", "", "state=PENDING"},
		{"another result", leaseService + "Complete", &pb.CompleteRequest{LeaseToken: v.completed.GetLeaseToken(), Result: bytesOf("other")}, precondition, "RESULT_CONFLICT", "", "job_id=" + done},
		{"completed lease", leaseService + "Release", &pb.ReleaseRequest{LeaseToken: v.completed.GetLeaseToken()}, precondition, "LEASE_ENDED", "", "lease_end=COMPLETED"},
	}
}

// tryItems sends batches, where each item is refused by itself.
func (v *victim) tryItems(t *testing.T) {
	check := func(what string, i int, e *pb.ItemError, code codes.Code, reason pb.ErrorReason) {
		t.Helper()
		if codes.Code(e.GetCode()) != code || e.GetReason() != reason || e.GetMessage() == "" {
			t.Errorf("%s, item %d: %v; want %v %s", what, i, e, code, reason)
		}
	}

	beats := &pb.BatchHeartbeatRequest{}
	for i := range 1000 {
		beats.Items = append(beats.Items, &pb.HeartbeatRequest{LeaseToken: fmt.Sprint(v.live.GetLeaseToken(), i), Stage: to("s")})
	}
	for i, r := range accepted(t, v.leases.BatchHeartbeat, beats).GetResults() {
		check("BatchHeartbeat", i, r.GetError(), invalid, pb.ErrorReason_ERROR_REASON_INVALID_TOKEN)
	}

	jobs := &pb.BatchEnqueueRequest{Items: []*pb.EnqueueRequest{
		{Queue: "nowhere"}, {Queue: v.queue, Subject: to("\x00")}, {Queue: v.queue, IdempotencyKey: to("k")},
		{Queue: v.queue, Payload: bytesOf(strings.Repeat("x", store.MaxPayloadBytes+1))}, {},
	}}
	results := accepted(t, v.jobs.BatchEnqueue, jobs).GetResults()
	for i, reason := range []pb.ErrorReason{
		pb.ErrorReason_ERROR_REASON_QUEUE_NOT_FOUND, pb.ErrorReason_ERROR_REASON_INVALID_REQUEST,
		pb.ErrorReason_ERROR_REASON_IDEMPOTENCY_KEY_REUSED, pb.ErrorReason_ERROR_REASON_TOO_LARGE, pb.ErrorReason_ERROR_REASON_INVALID_REQUEST,
	} {
		code := []codes.Code{codes.NotFound, invalid, codes.AlreadyExists, invalid, invalid}[i]
		check("BatchEnqueue", i, results[i].GetError(), code, reason)
	}

	selection := &pb.JobSelection{JobIds: []string{nobody, v.completed.GetJob().GetJobId()}}
	for what, done := range map[string][]*pb.BulkResult{
		"RetryJobs":  accepted(t, v.queues.RetryJobs, &pb.RetryJobsRequest{Selection: selection}).GetResults(),
		"CancelJobs": accepted(t, v.queues.CancelJobs, &pb.CancelJobsRequest{Selection: selection}).GetResults(),
	} {
		if len(done) != 2 {
			t.Fatalf("%s answers %v", what, done)
		}
		for i, r := range done {
			if r.GetJobId() == nobody {
				check(what, i, r.GetError(), codes.NotFound, pb.ErrorReason_ERROR_REASON_JOB_NOT_FOUND)
			} else {
				check(what, i, r.GetError(), precondition, pb.ErrorReason_ERROR_REASON_WRONG_STATE)
			}
		}
	}
}

// TestR37_AnErrorOf3900KilobytesIsCut: what gRPC lets through is never a reason to refuse
// the report of a failure.
func TestR37_AnErrorOf3900KilobytesIsCut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.leased(t)
	long := strings.Repeat("ä\x00", 1_300_000)
	resp := accepted(t, w.leases.Fail, &pb.FailRequest{LeaseToken: l.GetLeaseToken(), Error: &pb.JobError{Code: "code", Message: long}})
	if resp.GetState() != pb.JobState_JOB_STATE_PENDING {
		t.Errorf("the job is %s", resp.GetState())
	}
	got := accepted(t, w.jobs.GetJob, byID(l.GetJob().GetJobId())).GetJob().GetLastError()
	text, cut := strings.CutSuffix(got.GetMessage(), "…[cut]")
	if !cut || len(got.GetMessage()) > store.MaxErrorTextBytes || strings.Trim(text, "ä\uFFFD") != "" || len(text) < store.MaxErrorTextBytes-64 {
		t.Errorf("%d bytes are kept: %.20q…%q", len(got.GetMessage()), got.GetMessage(), got.GetMessage()[max(0, len(got.GetMessage())-20):])
	}
	if got.GetCode() != "code" {
		t.Errorf("the code is %q", got.GetCode())
	}
}
