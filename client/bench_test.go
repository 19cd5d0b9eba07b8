package client_test

import (
	"context"
	"fmt"
	"path"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/leasehold/leasehold/client"
	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// BenchmarkDrain is the rate at which one worker of so many slots drains a queue of jobs that do
// nothing, beside what two bare loops of 500 jobs a call reach, which is what the service can give.
// Only the ratio counts: go test -run - -bench Drain -benchtime 20000x ./client
func BenchmarkDrain(b *testing.B) {
	for _, slots := range []int{10, 100, 1000} {
		b.Run(fmt.Sprintf("slots=%d", slots), func(b *testing.B) { benchmarkWorker(b, slots) })
	}
	b.Run("bare", benchmarkBare)
}

func benchmarkWorker(b *testing.B, slots int) {
	w, q := fullQueue(b)
	var calls callCounter
	left := make(chan struct{}, b.N)
	worker, err := client.NewWorker(connect(b, []string{w.replicas[0].GRPC()}, grpc.WithUnaryInterceptor(calls.intercept)), client.WorkerConfig{
		Queues: []string{q}, Concurrency: slots,
		Handler: func(context.Context, *client.Job) error { left <- struct{}{}; return nil },
	})
	if err != nil {
		b.Fatal(err)
	}
	began := time.Now()
	b.ResetTimer()
	running := run(b, worker)
	for range b.N {
		await(b, "a job", left)
	}
	if err := running.stop(); err != nil {
		b.Error(err)
	}
	b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "jobs/s")
	calls.n.Range(func(name, n any) bool {
		b.ReportMetric(float64(b.N)/float64(n.(*atomic.Int64).Load()), "jobs/"+name.(string))
		return true
	})
}

// BenchmarkRuntime is what a job costs in the worker alone, over a service that answers at once.
func BenchmarkRuntime(b *testing.B) {
	const slots = 1000
	s := newStub()
	s.quiet = true
	left := b.N
	s.acquire = func(ctx context.Context, req *pb.AcquireLeaseRequest) (*pb.AcquireLeaseResponse, error) {
		n := min(left, int(req.GetMaxJobs()))
		if left -= n; n == 0 {
			return nothing(ctx, req)
		}
		return granted(n, time.Minute, 20*time.Second), nil
	}
	done := make(chan struct{}, b.N)
	w, err := client.NewWorker(client.Over(s), client.WorkerConfig{Queues: []string{"q"}, Concurrency: slots,
		Handler: func(context.Context, *client.Job) error { done <- struct{}{}; return nil }})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	running := run(b, w)
	for range b.N {
		<-done
	}
	if err := running.stop(); err != nil {
		b.Error(err)
	}
}

// fullQueue is a service with one replica and a queue of b.N jobs.
func fullQueue(b *testing.B) (*world, string) {
	w := newWorld(b, 1)
	q := w.createQueue(&pb.Queue{Name: "q"})
	w.enqueue(q, b.N)
	return w, q
}

// callCounter counts calls by method.
type callCounter struct{ n sync.Map }

func (c *callCounter) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	n, _ := c.n.LoadOrStore(path.Base(method), new(atomic.Int64))
	n.(*atomic.Int64).Add(1)
	return next(ctx, method, req, reply, cc, opts...)
}

func benchmarkBare(b *testing.B) {
	w, q := fullQueue(b)
	began := time.Now()
	b.ResetTimer()
	var loops sync.WaitGroup
	for range 2 {
		loops.Go(func() {
			most := int32(500)
			for {
				got := accepted(b, w.leases.AcquireLease, &pb.AcquireLeaseRequest{Queues: []string{q}, LeaseOwner: "bare", MaxJobs: &most})
				if len(got.GetLeases()) == 0 {
					return
				}
				req := &pb.BatchCompleteRequest{}
				for _, l := range got.GetLeases() {
					req.Items = append(req.Items, &pb.CompleteRequest{LeaseToken: l.GetLeaseToken()})
				}
				accepted(b, w.leases.BatchComplete, req)
			}
		})
	}
	loops.Wait()
	b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "jobs/s")
}
