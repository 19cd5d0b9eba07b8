package faultproxy

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// link is one connection through a proxy.
type link struct {
	client *net.TCPConn

	once sync.Once
	gone chan struct{} // closed where the link is cut, or both directions have ended
}

func (l *link) cut() { l.once.Do(func() { close(l.gone) }) }

// reset closes a connection as a peer that is gone does: what it had to say is lost.
func reset(conn *net.TCPConn) {
	_ = conn.SetLinger(0) // both fail on what is closed already only
	_ = conn.Close()
}

// run passes both directions until they have ended or the link is cut.
func (l *link) run(p *Proxy, server *net.TCPConn) {
	var directions sync.WaitGroup
	directions.Go(func() { l.forward(p, ToServer, l.client, server) })
	directions.Go(func() { l.forward(p, ToClient, server, l.client) })
	ended := make(chan struct{})
	go func() {
		directions.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		_ = l.client.Close() // nothing is left to lose
		_ = server.Close()
	case <-l.gone:
		reset(l.client)
		reset(server)
		<-ended
	}
}

// chunk is what one read gave.
type chunk struct {
	data    []byte
	err     error
	arrived time.Time
}

// forward passes one direction. Reading goes on while chunks wait for their time, so that a
// delay costs latency and no bandwidth.
func (l *link) forward(p *Proxy, d Direction, from, to *net.TCPConn) {
	chunks := make(chan chunk, chunksUnderWay)
	var reader sync.WaitGroup
	reader.Go(func() { l.read(from, chunks) })
	defer reader.Wait()
	for c := range chunks {
		if !l.hold(p, d, c.arrived) || !l.pass(p, d, c, to) {
			return
		}
	}
}

func (l *link) read(from *net.TCPConn, chunks chan<- chunk) {
	defer close(chunks)
	for {
		buffer := make([]byte, chunkBytes)
		n, err := from.Read(buffer)
		select {
		case chunks <- chunk{data: buffer[:n], err: err, arrived: time.Now()}:
		case <-l.gone:
			return
		}
		if err != nil {
			return
		}
	}
}

// hold waits until a chunk may pass; false where the link is cut before.
func (l *link) hold(p *Proxy, d Direction, arrived time.Time) bool {
	for {
		lane, changed := p.look(d)
		wait := time.Until(arrived.Add(lane.delay))
		var due <-chan time.Time
		if !lane.swallow {
			if wait <= 0 {
				return true
			}
			timer := time.NewTimer(wait)
			defer timer.Stop()
			due = timer.C
		}
		select {
		case <-due:
		case <-changed:
		case <-l.gone:
			return false
		}
	}
}

// pass delivers a chunk, or the end of its direction; false where there is no more to come.
func (l *link) pass(p *Proxy, d Direction, c chunk, to *net.TCPConn) bool {
	if len(c.data) > 0 {
		if p.springs(d, c.data) {
			l.cut()
			return false
		}
		if _, err := to.Write(c.data); err != nil {
			l.cut()
			return false
		}
	}
	if c.err == nil {
		return true
	}
	if !errors.Is(c.err, io.EOF) || to.CloseWrite() != nil {
		l.cut()
	}
	return false
}
