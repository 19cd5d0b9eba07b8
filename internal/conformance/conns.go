package conformance

import (
	"context"
	"net"
	"sync"

	"google.golang.org/grpc/peer"
)

// cutter is a listener that can cut the connection of one call: the way in which answers are lost.
type cutter struct {
	net.Listener
	mu    sync.Mutex
	conns map[string]net.Conn // by the client's address
}

func newCutter(l net.Listener) *cutter { return &cutter{Listener: l, conns: map[string]net.Conn{}} }

// Accept takes a connection and remembers it.
func (c *cutter) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conns[conn.RemoteAddr().String()] = conn
	return &cutConn{Conn: conn, of: c}, nil
}

// cut closes the connection that a call came by, with whatever else is under way there.
func (c *cutter) cut(ctx context.Context) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return
	}
	c.mu.Lock()
	conn := c.conns[p.Addr.String()]
	c.mu.Unlock()
	if conn != nil {
		conn.Close()
	}
}

// cutConn forgets itself when it is closed.
type cutConn struct {
	net.Conn
	of *cutter
}

// Close closes the connection.
func (c *cutConn) Close() error {
	c.of.mu.Lock()
	delete(c.of.conns, c.RemoteAddr().String())
	c.of.mu.Unlock()
	return c.Conn.Close()
}
