package faulttest

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// TestPoliteClientsMayPing: clients that ping every 10 s, idle ones too, keep their
// connection. gRPC's own rule allows one ping in five minutes, and ends the connection at the
// third, with every poll that is parked on it.
func TestPoliteClientsMayPing(t *testing.T) {
	t.Parallel()
	f := newFleet(t, database(t), 1)
	q := opened(t, f, &pb.Queue{Name: "q"})
	ctx, cancel := context.WithTimeout(t.Context(), 36*time.Second) // three pings, and the answer to the third
	defer cancel()
	type client struct {
		conn  *grpc.ClientConn
		ended chan error
	}
	clients := map[string]client{}
	for name, params := range map[string]keepalive.ClientParameters{
		"idle": {Time: 10 * time.Second, Timeout: 10 * time.Second, PermitWithoutStream: true},
		"poll": {Time: 10 * time.Second, Timeout: 10 * time.Second},
	} {
		conn, err := grpc.NewClient("passthrough:"+f.members[0].GRPC(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithKeepaliveParams(params))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		accepted(t, pb.NewQueueServiceClient(conn).GetQueue, &pb.GetQueueRequest{Name: q}) // connects
		c := client{conn: conn, ended: make(chan error, 1)}
		if name == "poll" {
			go func() {
				_, err := pb.NewLeaseServiceClient(conn).AcquireLease(context.WithoutCancel(ctx), &pb.AcquireLeaseRequest{
					Queues: []string{q}, LeaseOwner: "w", Wait: durationpb.New(45 * time.Second),
				})
				c.ended <- err
			}()
		}
		clients[name] = c
	}
	for name, c := range clients {
		if c.conn.WaitForStateChange(ctx, connectivity.Ready) {
			t.Errorf("the connection of the client %q went to %v", name, c.conn.GetState())
		}
	}
	stored(t, f.members[0], 1, &pb.EnqueueRequest{Queue: q})
	if err := <-clients["poll"].ended; err != nil {
		t.Errorf("the poll ended with %v", err)
	}
}
