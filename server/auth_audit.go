package server

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
)

// auditPatience bounds the look-up of queues for a line of the audit log.
const auditPatience = time.Second

// maxAuditQueues is how many queues one line names.
const maxAuditQueues = 20

// audited are the methods that change what others rely on: the acts of operators, and cancels.
func audited(method string) bool {
	return requiredRoles[method] == pb.Role_ROLE_OPERATOR || method == pb.JobService_CancelJob_FullMethodName
}

// audit writes who did what to which queue, and what came of it. It has no payload and no
// text of the request but names.
func (s *Server) audit(ctx context.Context, method string, req, resp any, err error) {
	if !audited(method) {
		return
	}
	id := s.callerOf(ctx)
	attrs := []slog.Attr{
		slog.String("identity", id.Name), slog.String("identity_from", id.From),
		slog.String("act", method[strings.LastIndexByte(method, '/')+1:]),
		slog.String("request_id", requestIDOf(ctx)),
	}
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		attrs = append(attrs, slog.String("peer", p.Addr.String()))
	}
	if r, ok := req.(interface{ GetActor() string }); ok && r.GetActor() != "" {
		attrs = append(attrs, slog.String("stated_actor", cut(r.GetActor(), maxFieldBytes)))
	}
	if r, ok := req.(interface{ GetJobId() string }); ok {
		attrs = append(attrs, slog.String("job_id", cut(r.GetJobId(), maxFieldBytes)))
	}
	attrs = append(attrs, slog.String("queue", s.auditQueues(ctx, req, err)))
	if r, ok := req.(bulkRequest); ok {
		attrs = append(attrs, slog.Bool("dry_run", r.GetDryRun()))
	}
	if r, ok := resp.(interface{ GetResults() []*pb.BulkResult }); ok && err == nil {
		refused := 0
		for _, result := range r.GetResults() {
			if result.GetError() != nil {
				refused++
			}
		}
		attrs = append(attrs, slog.Int("jobs", len(r.GetResults())-refused), slog.Int("jobs_refused", refused))
	}
	s.auditLog.LogAttrs(ctx, slog.LevelInfo, "audit", append(attrs, slog.String("outcome", outcomeWord(err)))...)
}

func outcomeWord(err error) string {
	if err == nil {
		return codes.OK.String()
	}
	f := faultOf(err)
	if f.reason == pb.ErrorReason_ERROR_REASON_UNSPECIFIED {
		return f.code.String()
	}
	return reasonWord(f.reason)
}

// auditQueues names the queues of an act; "*" is all. Jobs are looked up, unless the database
// has just failed.
func (s *Server) auditQueues(ctx context.Context, req any, err error) string {
	var ids []store.JobID
	add := func(text string) {
		if id, err := strconv.ParseInt(text, 10, 64); err == nil {
			ids = append(ids, store.JobID(id))
		}
	}
	switch r := req.(type) {
	case interface{ GetJobId() string }:
		add(r.GetJobId())
	case bulkRequest:
		for _, id := range r.GetSelection().GetJobIds()[:min(len(r.GetSelection().GetJobIds()), store.MaxBatch)] {
			add(id)
		}
		if len(ids) == 0 {
			return cmp.Or(cut(queueNamed(req), maxQueueBytes), "*")
		}
	default:
		return cut(queueNamed(req), maxQueueBytes)
	}
	if isOutage(err) {
		return ""
	}
	own, cancel := context.WithTimeout(context.WithoutCancel(ctx), auditPatience)
	defer cancel()
	var found map[store.JobID]string
	// A panic here, outside of the recovery of calls, would end the process.
	if err := guard(func() (err error) { found, err = s.queuesOf.of(own, ids...); return err }); err != nil {
		return ""
	}
	var names []string
	for _, queue := range found {
		names = append(names, queue)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) > maxAuditQueues {
		names = append(names[:maxAuditQueues], "…")
	}
	return strings.Join(names, ",")
}

// loggedHandshakes tells why clients were turned away before any call: the client's own
// library often keeps the reason to itself.
type loggedHandshakes struct {
	credentials.TransportCredentials
	log *slog.Logger
	// loud bounds the lines that strangers can cause.
	loud *rate.Limiter
}

func newLoggedHandshakes(c credentials.TransportCredentials, log *slog.Logger) *loggedHandshakes {
	return &loggedHandshakes{TransportCredentials: c, log: log, loud: rate.NewLimiter(1, 20)}
}

// ServerHandshake implements credentials.TransportCredentials.
func (l *loggedHandshakes) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secured, info, err := l.TransportCredentials.ServerHandshake(conn)
	if err != nil {
		level := slog.LevelDebug
		// A load balancer that only looks whether the port is open hangs up at once.
		if !errors.Is(err, io.EOF) && l.loud.Allow() {
			level = slog.LevelInfo
		}
		l.log.Log(context.Background(), level, "a TLS handshake failed", "peer", conn.RemoteAddr().String(), "error", err)
	}
	return secured, info, err
}

// Clone implements credentials.TransportCredentials.
func (l *loggedHandshakes) Clone() credentials.TransportCredentials {
	return &loggedHandshakes{TransportCredentials: l.TransportCredentials.Clone(), log: l.log, loud: l.loud}
}
