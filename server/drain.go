package server

import (
	"context"

	"google.golang.org/grpc/health/grpc_health_v1"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// healthServices are the names that health answers for; "" is the whole server.
var healthServices = []string{
	"",
	pb.LeaseService_ServiceDesc.ServiceName,
	pb.JobService_ServiceDesc.ServiceName,
	pb.QueueService_ServiceDesc.ServiceName,
}

// SetServing sets what grpc.health.v1 answers. It has no effect once Drain has begun. Calls
// are answered either way: health is advice to balancers.
func (s *Server) SetServing(serving bool) {
	status := grpc_health_v1.HealthCheckResponse_NOT_SERVING
	if serving {
		status = grpc_health_v1.HealthCheckResponse_SERVING
	}
	for _, name := range healthServices {
		s.health.SetServingStatus(name, status)
	}
}

// Draining tells whether Drain has begun.
func (s *Server) Draining() bool {
	select {
	case <-s.draining:
		return true
	default:
		return false
	}
}

// Drain shuts the server down: health turns NOT_SERVING, parked polls end with DRAINING,
// heartbeats answer server_draining, new connections are refused, and calls under way are
// answered. When ctx ends first, they are cut off and its error is returned; claims under
// way are still given back before Drain returns. The store must outlive it.
func (s *Server) Drain(ctx context.Context) error {
	s.health.Shutdown()
	s.drain.Do(func() { close(s.draining) })
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.grpc.GracefulStop()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		s.grpc.Stop()
		<-done // GracefulStop waits for handlers, also where Stop has cut off their calls
		return ctx.Err()
	}
}
