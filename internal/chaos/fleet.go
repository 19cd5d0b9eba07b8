package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/leasehold/leasehold/internal/faultproxy"
	"github.com/leasehold/leasehold/internal/replica"
)

// member is one replica, with a proxy on either side of it.
type member struct {
	*replica.Replica
	outer *faultproxy.Proxy // between clients and the replica
	inner *faultproxy.Proxy // between the replica and PostgreSQL

	mu sync.Mutex // held by whoever starts or ends the process
	up bool       // it shall run
	// failed is told when the process ends without having been told to.
	failed func(error)
	again  sync.WaitGroup
}

const (
	// startPatience bounds the start of anything, on a busy machine and with crash recovery.
	startPatience = 2 * time.Minute
	// drainTimeout is that of the replicas; stopPatience is far above it.
	drainTimeout = 3 * time.Second
	stopPatience = 30 * time.Second
)

// fleet is the replicas of the service.
type fleet struct{ members []*member }

// startFleet starts n replicas over the database at databaseURL. failed is told of each that
// ends by itself.
func startFleet(ctx context.Context, n int, binary, databaseURL, dir string, failed func(error)) (*fleet, error) {
	f := &fleet{}
	for i := range n {
		m, err := startMember(ctx, binary, databaseURL, filepath.Join(dir, fmt.Sprint("replica-", i)), failed)
		if m != nil {
			f.members = append(f.members, m)
		}
		if err != nil {
			f.close(dir)
			return nil, err
		}
	}
	return f, nil
}

func startMember(ctx context.Context, binary, databaseURL, dir string, failed func(error)) (m *member, err error) {
	u, err := url.Parse(databaseURL)
	if err != nil {
		return nil, err
	}
	m = &member{failed: failed}
	if m.inner, err = faultproxy.New(u.Host); err != nil {
		return nil, err
	}
	through, err := m.inner.Through(databaseURL)
	if err != nil {
		return m, err
	}
	// Ports of outgoing connections would be taken while a replica is down.
	ports, err := quietPorts(2)
	if err != nil {
		return m, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return m, err
	}
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	m.Replica, err = replica.Start(ctx, replica.Config{
		Binary: binary, DatabaseURL: through, Dir: dir, Args: []string{
			"--watcher-interval", watcherInterval.String(), "--drain-timeout", drainTimeout.String(), "--log-level", "warn",
			"--listen", ports[0], "--http", ports[1],
		},
	})
	if err != nil {
		return m, err
	}
	m.up = true
	m.watch()
	m.outer, err = faultproxy.New(m.GRPC())
	return m, err
}

// quietPorts finds free addresses below the ports that systems give to outgoing connections.
func quietPorts(n int) (addresses []string, err error) {
	const low, high = 16000, 32000
	start := os.Getpid() * 37
	for i := 0; len(addresses) < n && i < high-low; i++ {
		address := fmt.Sprintf("127.0.0.1:%d", low+(start+i*101)%(high-low))
		listener, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		defer listener.Close() // after all are found, so that none is found twice
		addresses = append(addresses, address)
	}
	if len(addresses) < n {
		return nil, errors.New("there are no free ports")
	}
	return addresses, nil
}

// watch tells of an end that nobody wanted, and starts the replica again.
func (m *member) watch() {
	ended := m.Ended()
	m.again.Go(func() {
		<-ended
		m.mu.Lock()
		defer m.mu.Unlock()
		if !m.up || m.Ended() != ended {
			return
		}
		m.failed(fmt.Errorf("the replica at %s ended by itself with exit code %d; it said:\n%s", m.GRPC(), m.ExitCode(), lastLines(m.Log(), 30)))
		m.begin()
	})
}

// begin starts the process without waiting for it to be ready. m.mu is held.
func (m *member) begin() {
	m.up = true
	if err := m.Begin(); err != nil {
		m.up = false
		m.failed(fmt.Errorf("the replica at %s does not start: %w", m.GRPC(), err))
		return
	}
	m.watch()
}

// kill crashes the replica; start lets it come back.
func (m *member) kill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.up = false
	m.Kill()
}

func (m *member) start() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.up {
		m.begin()
	}
}

// restart drains the replica and starts it again.
func (m *member) restart() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.up {
		m.drain()
	}
	m.begin()
}

// drain ends the replica in an orderly way, which must work whatever goes on around it.
// m.mu is held.
func (m *member) drain() {
	m.up = false
	ctx, cancel := context.WithTimeout(context.Background(), stopPatience)
	defer cancel()
	if err := m.Stop(ctx); err != nil {
		m.failed(fmt.Errorf("the replica at %s: %w", m.GRPC(), err))
	}
}

// heal ends whatever is done to the replica, and waits until it serves.
func (m *member) heal(ctx context.Context) error {
	for _, p := range []*faultproxy.Proxy{m.outer, m.inner} {
		p.Refuse(false)
		for _, d := range []faultproxy.Direction{faultproxy.ToServer, faultproxy.ToClient} {
			p.Swallow(d, false)
			p.Delay(d, 0)
		}
	}
	m.Thaw()
	m.start()
	return m.AwaitReady(ctx)
}

// addresses are where clients reach the replicas: their outer proxies.
func (f *fleet) addresses() (out []string) {
	for _, m := range f.members {
		out = append(out, m.outer.Addr())
	}
	return out
}

// stop drains all replicas.
func (f *fleet) stop() {
	for _, m := range f.members {
		m.mu.Lock()
		if m.up {
			m.drain()
		}
		m.mu.Unlock()
	}
}

// close ends what is left, and leaves in dir what the replicas have said.
func (f *fleet) close(dir string) {
	for i, m := range f.members {
		if m.Replica != nil {
			m.kill()
			m.again.Wait()
			_ = os.WriteFile(filepath.Join(dir, fmt.Sprintf("replica-%d.log", i)), []byte(m.Log()), 0o644) // for people
		}
		for _, p := range []*faultproxy.Proxy{m.outer, m.inner} {
			if p != nil {
				p.Close()
			}
		}
	}
}
