// Package faultproxy is a TCP proxy for tests, which breaks connections in the ways that
// networks do: it cuts them, also at one chosen message, delays what passes, and swallows a
// direction as a firewall does that has forgotten a connection. Faults may be set while
// connections are open. What was swallowed or delayed is delivered once the fault is
// healed, in order, as TCP would by sending again.
package faultproxy

import (
	"net"
	"net/url"
	"sync"
	"time"
)

// Direction is one of the two ways through a proxy.
type Direction int

// The directions.
const (
	ToServer Direction = iota // what the client sends
	ToClient                  // what the server answers
)

const (
	dialTimeout = 5 * time.Second
	// chunkBytes is what is read, and then passed or not, at once.
	chunkBytes = 32 << 10
	// chunksUnderWay is how much a delay may hold of one direction of one connection.
	chunksUnderWay = 64
)

// Proxy forwards TCP connections to one address. Its methods may be called by several
// goroutines at once.
type Proxy struct {
	target   string
	listener net.Listener
	running  sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	refuse  bool
	links   map[*link]struct{}
	lanes   [2]lane
	changed chan struct{} // closed, and made anew, where a lane changes
}

// lane is how one direction behaves, for all connections.
type lane struct {
	swallow bool
	delay   time.Duration
	trap    *trap
}

// trap waits for the message at which a connection is to be cut.
type trap struct {
	match  func([]byte) bool
	sprung chan struct{}
}

// New starts a proxy on a free port of 127.0.0.1 for target, as "127.0.0.1:5432". Nothing
// is dialled before a client connects.
func New(target string) (*Proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{target: target, listener: listener, links: map[*link]struct{}{}, changed: make(chan struct{})}
	p.running.Go(p.accept)
	return p, nil
}

// Addr is where the proxy listens.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Through is rawURL with the proxy's address in the place of host and port.
func (p *Proxy) Through(rawURL string) (string, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return "", err
	}
	u.Host = p.Addr()
	return u.String(), nil
}

// Close cuts every connection, refuses new ones and waits until nothing of the proxy runs.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.listener.Close()
	p.Cut()
	p.running.Wait()
}

// Cut resets every connection that is open; what is under way is lost. New ones are
// accepted.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.cut()
	}
}

// Refuse makes the proxy reset new connections at once, or accept them again. Open ones
// stay.
func (p *Proxy) Refuse(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = on
}

// Swallow holds back all that goes in a direction, also the end of a connection, or
// delivers it again. Nobody is told: both sides see a peer that is silent.
func (p *Proxy) Swallow(d Direction, on bool) { p.change(d, func(l *lane) { l.swallow = on }) }

// Delay makes all that goes in a direction take so much longer; 0 ends that.
func (p *Proxy) Delay(d Direction, by time.Duration) { p.change(d, func(l *lane) { l.delay = by }) }

// CutAt cuts the connection on which, in a direction, the first chunk arrives that match
// says yes to; the chunk itself is not delivered. That happens once: then the channel is
// closed, and the direction is as before. A chunk is what one read gave: for small messages
// that are sent at once it is the message. match must not keep the chunk, nor call the proxy.
func (p *Proxy) CutAt(d Direction, match func(chunk []byte) bool) <-chan struct{} {
	t := &trap{match: match, sprung: make(chan struct{})}
	p.change(d, func(l *lane) { l.trap = t })
	return t.sprung
}

func (p *Proxy) change(d Direction, how func(*lane)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	how(&p.lanes[d])
	close(p.changed)
	p.changed = make(chan struct{})
}

// look tells how a direction behaves now, and what ends when that changes.
func (p *Proxy) look(d Direction) (lane, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lanes[d], p.changed
}

// springs tells whether a chunk springs the trap of its direction, which is then gone.
func (p *Proxy) springs(d Direction, chunk []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.lanes[d].trap
	if t == nil || !t.match(chunk) {
		return false
	}
	p.lanes[d].trap = nil
	close(t.sprung)
	return true
}

func (p *Proxy) accept() {
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		p.running.Go(func() { p.serve(conn.(*net.TCPConn)) })
	}
}

func (p *Proxy) serve(client *net.TCPConn) {
	l := &link{client: client, gone: make(chan struct{})}
	if !p.add(l) {
		reset(client)
		return
	}
	defer p.remove(l)
	server, err := net.DialTimeout("tcp", p.target, dialTimeout)
	if err != nil {
		reset(client)
		return
	}
	l.run(p, server.(*net.TCPConn))
}

func (p *Proxy) add(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.refuse {
		return false
	}
	p.links[l] = struct{}{}
	return true
}

func (p *Proxy) remove(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}
