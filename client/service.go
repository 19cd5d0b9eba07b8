package client

import (
	"math/rand/v2"
	"slices"
	"time"

	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

const (
	// pingAfter and pingTimeout find a connection whose other end vanished without a word. The
	// service allows a ping every 5 s.
	pingAfter   = 10 * time.Second
	pingTimeout = 5 * time.Second
	// connectTimeout bounds one try to connect; gRPC's own 20 s is longer than many leases.
	connectTimeout = 5 * time.Second
	// reconnectMost bounds the wait between two tries; gRPC's own 2 min would keep workers away
	// from a service that has long come back.
	reconnectMost = 3 * time.Second
	// roundRobin spreads the calls over all addresses of a name.
	roundRobin = `{"loadBalancingConfig":[{"round_robin":{}}]}`
)

// ConnectConfig says how to connect. The zero value is usable.
type ConnectConfig struct {
	// Credentials secure the connections. Default: none, in plaintext, which is for loopback and
	// private networks only.
	Credentials credentials.TransportCredentials
	// DialOptions come after this package's own, and win: per-call credentials, interceptors, a
	// dialer. Default: none.
	DialOptions []grpc.DialOption
}

// Service is a way to the replicas of one Leasehold service. Workers and producers share it; its
// methods may be called by several goroutines at once.
//
// It has connections of their own for the long polls, for the heartbeats and for all other calls,
// so that neither a thousand parked polls nor a big answer can hold up a heartbeat. A replica that
// fails, drains or does not answer is passed over for a second, then for longer, at most 30 s.
type Service struct {
	polls, beats, calls *lane
	owned               []*grpc.ClientConn
}

// Connect prepares connections to the replicas of a service; they are made when they are needed.
// Endpoints are addresses ("10.0.0.7:7070"), names that resolve to one or more of them
// ("leasehold:7070") or gRPC targets ("dns:///…"), at least one. Give all replicas, or a name that
// resolves to all: a worker whose only address is one replica stops when that one does. It fails
// where an endpoint cannot be read; whether anybody listens there is found out by the first call.
// Close the Service when nothing uses it any more.
func Connect(endpoints []string, cfg ConnectConfig) (*Service, error) {
	if len(endpoints) == 0 {
		return nil, &InvalidError{Field: "endpoints", Want: "at least one"}
	}
	if len(endpoints) == 1 {
		// A second connection, which is not made before the first one fails: behind a balancer
		// it leads elsewhere, and before a firewall that has forgotten the first it works.
		endpoints = []string{endpoints[0], endpoints[0]}
	}
	// Workers begin at different replicas, so that each has its share of them.
	first := rand.N(len(endpoints))
	order := slices.Concat(endpoints[first:], endpoints[:first])
	s := &Service{}
	for _, l := range []**lane{&s.polls, &s.beats, &s.calls} {
		var conns []grpc.ClientConnInterface
		for _, endpoint := range order {
			conn, err := grpc.NewClient(endpoint, dialOptions(cfg)...)
			if err != nil {
				s.Close()
				return nil, err
			}
			s.owned = append(s.owned, conn)
			conns = append(conns, conn)
		}
		*l = newLane(conns)
	}
	return s, nil
}

func dialOptions(cfg ConnectConfig) []grpc.DialOption {
	secure := cfg.Credentials
	if secure == nil {
		secure = insecure.NewCredentials()
	}
	return append([]grpc.DialOption{
		grpc.WithTransportCredentials(secure),
		grpc.WithDefaultServiceConfig(roundRobin),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingAfter, Timeout: pingTimeout, PermitWithoutStream: true}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           grpcbackoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: reconnectMost},
			MinConnectTimeout: connectTimeout,
		}),
	}, cfg.DialOptions...)
}

// Over is a Service over connections that the caller has made and closes, one for each replica, at
// least one, the most preferred first. Heartbeats then share them with long polls; Connect is
// better where you can use it. It panics without a connection.
func Over(conns ...grpc.ClientConnInterface) *Service {
	if len(conns) == 0 {
		panic("client.Over needs a connection")
	}
	return &Service{polls: newLane(conns), beats: newLane(conns), calls: newLane(conns)}
}

// Conn is for the generated clients: pb.NewJobServiceClient(service.Conn()). Each call goes once,
// by a replica that has not just failed.
func (s *Service) Conn() grpc.ClientConnInterface { return s.calls }

// Close closes the connections that Connect made. Calls under way fail.
func (s *Service) Close() {
	for _, conn := range s.owned {
		_ = conn.Close() // it fails where it is closed already
	}
}
