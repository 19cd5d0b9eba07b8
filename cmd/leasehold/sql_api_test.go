package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
)

// sqlReason is SQLSTATE and reason of an error of the functions.
func sqlReason(err error) string {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return fmt.Sprint(err)
	}
	return pgErr.Code + " " + pgErr.Detail
}

// sameCase is one job, as it is enqueued over the API and by SQL.
type sameCase struct {
	name string
	sql  string // named arguments behind the queue
	api  func(r *pb.EnqueueRequest)
}

func policy(change func(p *pb.JobPolicy)) func(*pb.EnqueueRequest) {
	return func(r *pb.EnqueueRequest) {
		r.Policy = &pb.JobPolicy{Backoff: &pb.Backoff{}}
		change(r.Policy)
	}
}

// atBounds are a case at each end of a span of seconds, and one beyond each.
func atBounds(name string, least, most int64, set func(*pb.EnqueueRequest, *durationpb.Duration)) []sameCase {
	var cases []sameCase
	for _, micros := range []int64{least * 1e6, most * 1e6, least*1e6 - 1, most*1e6 + 1} {
		d := time.Duration(micros) * time.Microsecond
		cases = append(cases, sameCase{
			name: fmt.Sprintf("%s of %v", name, d), sql: fmt.Sprintf("%s => interval '1 microsecond' * %d", name, micros),
			api: func(r *pb.EnqueueRequest) { set(r, durationpb.New(d)) },
		})
	}
	return cases
}

func numbers(name string, values []float64, set func(*pb.EnqueueRequest, float64)) []sameCase {
	var cases []sameCase
	for _, v := range values {
		cases = append(cases, sameCase{name: fmt.Sprintf("%s of %v", name, v), sql: fmt.Sprintf("%s => %v", name, v), api: func(r *pb.EnqueueRequest) { set(r, v) }})
	}
	return cases
}

func texts(name string, set func(*pb.EnqueueRequest, string)) []sameCase {
	var cases []sameCase
	for _, v := range []string{"", "x", strings.Repeat("x", 256), strings.Repeat("x", 257), strings.Repeat("ä", 128), strings.Repeat("ä", 129)} {
		cases = append(cases, sameCase{name: fmt.Sprintf("%s of %d bytes", name, len(v)), sql: fmt.Sprintf("%s => '%s'", name, v), api: func(r *pb.EnqueueRequest) { set(r, v) }})
	}
	return cases
}

func sameCases() []sameCase {
	const day = 86400
	var all []sameCase
	all = append(all, atBounds("delay", 0, 1827*day, func(r *pb.EnqueueRequest, d *durationpb.Duration) { r.Delay = d })...)
	for name, f := range map[string]func(p *pb.JobPolicy, d *durationpb.Duration){
		"backoff_initial 0 86400":          func(p *pb.JobPolicy, d *durationpb.Duration) { p.Backoff.Initial = d },
		"backoff_cap 0 2592000":            func(p *pb.JobPolicy, d *durationpb.Duration) { p.Backoff.Cap = d },
		"lease_duration 1 43200":           func(p *pb.JobPolicy, d *durationpb.Duration) { p.LeaseDuration = d },
		"max_runtime 1 2592000":            func(p *pb.JobPolicy, d *durationpb.Duration) { p.MaxRuntime = d },
		"stall_timeout 1 2592000":          func(p *pb.JobPolicy, d *durationpb.Duration) { p.StallTimeout = d },
		"cancel_grace 0 86400":             func(p *pb.JobPolicy, d *durationpb.Duration) { p.CancelGrace = d },
		"idempotency_retention 0 31622400": func(p *pb.JobPolicy, d *durationpb.Duration) { p.IdempotencyRetention = d },
	} {
		var field string
		var least, most int64
		if _, err := fmt.Sscan(name, &field, &least, &most); err != nil {
			panic(err)
		}
		all = append(all, atBounds(field, least, most, func(r *pb.EnqueueRequest, d *durationpb.Duration) { policy(func(p *pb.JobPolicy) { f(p, d) })(r) })...)
	}
	counts := []float64{0, 1, 1000, 1001, -1}
	all = append(all, numbers("priority", []float64{0, 1, 9, 10, -1}, func(r *pb.EnqueueRequest, v float64) { r.Priority = proto.Int32(int32(v)) })...)
	all = append(all, numbers("max_attempts", counts, func(r *pb.EnqueueRequest, v float64) {
		policy(func(p *pb.JobPolicy) { p.MaxAttempts = proto.Int32(int32(v)) })(r)
	})...)
	all = append(all, numbers("max_expirations", counts, func(r *pb.EnqueueRequest, v float64) {
		policy(func(p *pb.JobPolicy) { p.MaxExpirations = proto.Int32(int32(v)) })(r)
	})...)
	all = append(all, numbers("backoff_factor", []float64{0.99, 1, 10, 10.01}, func(r *pb.EnqueueRequest, v float64) {
		policy(func(p *pb.JobPolicy) { p.Backoff.Factor = proto.Float64(v) })(r)
	})...)
	all = append(all, numbers("backoff_jitter", []float64{-0.01, 0, 1, 1.01}, func(r *pb.EnqueueRequest, v float64) {
		policy(func(p *pb.JobPolicy) { p.Backoff.Jitter = proto.Float64(v) })(r)
	})...)
	all = append(all, texts("subject", func(r *pb.EnqueueRequest, v string) { r.Subject = &v })...)
	all = append(all, texts("idempotency_key", func(r *pb.EnqueueRequest, v string) { r.IdempotencyKey = &v })...)
	all = append(all, texts("content_type", func(r *pb.EnqueueRequest, v string) { r.Payload = &pb.Payload{ContentType: v} })...)
	all = append(all, contentCases()...)
	return append(all, headerCases()...)
}

func contentCases() []sameCase {
	var all []sameCase
	for _, text := range []string{`{}`, ` [1, 2 ] `, `null`, `"x"`, `01`, `{`, ``, `{"a":}`, `"\ud800"`, `"\u0000"`, `nan`, `{"a":1}x`, `"` + strings.Repeat("x", 1<<20-2) + `"`, `"` + strings.Repeat("x", 1<<20-1) + `"`} {
		all = append(all, sameCase{
			name: fmt.Sprintf("JSON %.20s of %d bytes", text, len(text)), sql: "payload => '" + text + "'",
			api: func(r *pb.EnqueueRequest) { r.Payload = &pb.Payload{Content: &pb.Payload_Json{Json: text}} },
		})
	}
	for _, size := range []int{0, 1 << 20, 1<<20 + 1} {
		all = append(all, sameCase{
			name: fmt.Sprintf("%d bytes", size), sql: fmt.Sprintf("data => decode(repeat('ff', %d), 'hex')", size),
			api: func(r *pb.EnqueueRequest) {
				r.Payload = &pb.Payload{Content: &pb.Payload_Data{Data: []byte(strings.Repeat("\xff", size))}}
			},
		})
	}
	for name, c := range map[string]struct {
		at time.Time
		by string
	}{
		"long past": {time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC), "'0001-01-01Z'"}, "far ahead": {time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), "'9999-01-01Z'"},
	} {
		all = append(all, sameCase{name: "run_at " + name, sql: "run_at => " + c.by, api: func(r *pb.EnqueueRequest) { r.RunAt = timestamppb.New(c.at) }})
	}
	return append(all,
		sameCase{"run_at and delay", "run_at => now(), delay => '1 second'", func(r *pb.EnqueueRequest) { r.RunAt, r.Delay = timestamppb.Now(), durationpb.New(time.Second) }},
		sameCase{"no such queue", "", func(r *pb.EnqueueRequest) { r.Queue = "nobodys" }},
		sameCase{"no queue's name", "", func(r *pb.EnqueueRequest) { r.Queue = "Nobodys" }},
		sameCase{"an empty name", "", func(r *pb.EnqueueRequest) { r.Queue = "" }},
	)
}

func headerCases() []sameCase {
	var all []sameCase
	for name, headers := range map[string]map[string]string{
		"no headers": {}, "a header": {"a-b.c_1": "ü"}, "a key of capitals": {"A": "x"}, "an empty key": {"": "x"}, "a long key": {strings.Repeat("k", 65): "x"},
		"65 headers": manyHeaders(65), "64 headers": manyHeaders(64), "16 KiB": {"k": strings.Repeat("v", 16<<10-1)}, "more than 16 KiB": {"k": strings.Repeat("v", 16<<10)},
	} {
		pairs := make([]string, 0, len(headers))
		for k, v := range headers {
			pairs = append(pairs, fmt.Sprintf("%q: %q", k, v))
		}
		all = append(all, sameCase{name: name, sql: "headers => '{" + strings.Join(pairs, ",") + "}'", api: func(r *pb.EnqueueRequest) { r.Headers = headers }})
	}
	return all
}

func manyHeaders(n int) map[string]string {
	headers := map[string]string{}
	for i := range n {
		headers[fmt.Sprint("h", i)] = ""
	}
	return headers
}

// TestR46SQLRefusesWhatTheAPIRefuses with the same reason, and takes what the API takes: each
// option at its bounds and beyond them.
func TestR46SQLRefusesWhatTheAPIRefuses(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t, nil)
	grpcAddress, _ := beginService(t, "serve", "--database-url", url).addresses(t)
	jobs, conn := pb.NewJobServiceClient(dial(t, grpcAddress)), connect(t, url)
	if _, err := pb.NewQueueServiceClient(dial(t, grpcAddress)).CreateQueue(t.Context(), &pb.CreateQueueRequest{Queue: &pb.Queue{Name: "q"}}); err != nil {
		t.Fatal(err)
	}
	taken, refused := 0, 0
	for _, c := range sameCases() {
		request := &pb.EnqueueRequest{Queue: "q"}
		c.api(request)
		_, err := jobs.Enqueue(t.Context(), request)
		want := apiReason(err)
		sql := `SELECT leasehold.enqueue('` + request.GetQueue() + `'`
		if c.sql != "" {
			sql += ", " + c.sql
		}
		_, err = conn.Exec(t.Context(), sql+")")
		got := "taken"
		if err != nil {
			_, got, _ = strings.Cut(sqlReason(err), " ")
		}
		if got != want {
			t.Errorf("%s: SQL: %s (%v), API: %s", c.name, got, err, want)
		}
		if want == "taken" {
			taken++
		} else {
			refused++
		}
	}
	if taken < 30 || refused < 40 {
		t.Errorf("%d cases were taken, %d refused", taken, refused)
	}
}

func apiReason(err error) string {
	if err == nil {
		return "taken"
	}
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return info.GetReason()
		}
	}
	return err.Error()
}
