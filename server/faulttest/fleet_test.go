package faulttest

import (
	"net/url"
	"testing"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// hostOf is the host and port of a database's URL.
func hostOf(t *testing.T, rawURL string) string {
	t.Helper()
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

// TestFleet: the replicas of the rig serve one database, through their proxies, and one that
// was killed serves again at its address.
func TestFleet(t *testing.T) {
	t.Parallel()
	f := newFleet(t, database(t), 2)
	accepted(t, f.members[0].queues.CreateQueue, &pb.CreateQueueRequest{Queue: &pb.Queue{Name: "q"}})
	accepted(t, f.members[1].queues.GetQueue, &pb.GetQueueRequest{Name: "q"})
	f.members[1].Kill()
	if err := f.members[1].Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the replica that was killed serves again", func() bool {
		_, err := f.members[1].queues.GetQueue(t.Context(), &pb.GetQueueRequest{Name: "q"})
		return err == nil
	})
	if f.members[0].PID() == 0 || f.members[0].HTTP() == "" || f.db.URL == "" {
		t.Error("a replica without a process or an address")
	}
}
