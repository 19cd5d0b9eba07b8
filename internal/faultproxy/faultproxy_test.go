package faultproxy

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is far above what anything here takes on a busy machine.
const patience = 20 * time.Second

// unheard is how long a test listens for what must not come.
const unheard = 50 * time.Millisecond

// echo is a server that answers each connection with what it hears, and counts the bytes.
type echo struct {
	listener net.Listener
	mu       sync.Mutex
	heard    bytes.Buffer
}

func startEcho(t *testing.T) *echo {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &echo{listener: l}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer conn.Close()
				_, _ = io.Copy(io.MultiWriter(conn, e), conn) // a cut is what the tests are about
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		running.Wait()
	})
	return e
}

func (e *echo) Write(b []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.heard.Write(b)
}

func (e *echo) said() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.heard.String()
}

func start(t *testing.T) (*echo, *Proxy) {
	t.Helper()
	e := startEcho(t)
	p, err := New(e.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return e, p
}

func connect(t *testing.T, p *Proxy) net.Conn {
	t.Helper()
	conn, err := net.DialTimeout("tcp", p.Addr(), patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func say(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
}

func hear(t *testing.T, conn net.Conn, want string) {
	t.Helper()
	got := make([]byte, len(want))
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != want {
		t.Fatalf("heard %q, %v; want %q", got, err, want)
	}
}

func hearNothing(t *testing.T, conn net.Conn) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(unheard))
	var b [1]byte
	if n, err := conn.Read(b[:]); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("heard %d bytes, %v; want silence", n, err)
	}
}

// hearEnd checks that the connection is gone without a word.
func hearEnd(t *testing.T, conn net.Conn) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	var b [1]byte
	if n, err := conn.Read(b[:]); n != 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("heard %d bytes, %v; want the end", n, err)
	}
}

// wantTurnedAway checks that a new connection is reset, be it before or after the client's
// own system calls it open.
func wantTurnedAway(t *testing.T, p *Proxy) {
	t.Helper()
	conn, err := net.DialTimeout("tcp", p.Addr(), patience)
	if err != nil {
		return
	}
	defer conn.Close()
	hearEnd(t, conn)
}

func TestPassesBothDirectionsAndTheEnd(t *testing.T) {
	t.Parallel()
	_, p := start(t)
	conn := connect(t, p)
	large := strings.Repeat("0123456789abcdef", 1<<16) // 1 MiB: many chunks
	go func() {
		_, _ = io.WriteString(conn, large) // the echo says whether it came
		_ = conn.(*net.TCPConn).CloseWrite()
	}()
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	got, err := io.ReadAll(conn)
	if err != nil || string(got) != large {
		t.Fatalf("%d bytes came back, %v; want %d", len(got), err, len(large))
	}
}

func TestCutEndsOpenConnectionsOnly(t *testing.T) {
	t.Parallel()
	_, p := start(t)
	first := connect(t, p)
	say(t, first, "a")
	hear(t, first, "a")
	p.Cut()
	hearEnd(t, first)
	second := connect(t, p)
	say(t, second, "b")
	hear(t, second, "b")
}

func TestRefuseEndsNewConnectionsOnly(t *testing.T) {
	t.Parallel()
	_, p := start(t)
	open := connect(t, p)
	say(t, open, "a")
	hear(t, open, "a")
	p.Refuse(true)
	wantTurnedAway(t, p)
	say(t, open, "b")
	hear(t, open, "b")
	p.Refuse(false)
	again := connect(t, p)
	say(t, again, "c")
	hear(t, again, "c")
}

func TestSwallowedIsDeliveredWhenHealed(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]Direction{"to server": ToServer, "to client": ToClient} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, p := start(t)
			conn := connect(t, p)
			say(t, conn, "a")
			hear(t, conn, "a")
			p.Swallow(d, true)
			say(t, conn, "b")
			hearNothing(t, conn)
			if d == ToServer && e.said() != "a" {
				t.Fatalf("the server heard %q", e.said())
			}
			p.Swallow(d, false)
			hear(t, conn, "b")
		})
	}
}

func TestSwallowHidesTheEndOfThePeer(t *testing.T) {
	t.Parallel()
	_, p := start(t)
	conn := connect(t, p)
	say(t, conn, "a")
	hear(t, conn, "a")
	p.Swallow(ToClient, true)
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil { // the echo then closes, too
		t.Fatal(err)
	}
	hearNothing(t, conn)
	p.Swallow(ToClient, false)
	hearEnd(t, conn)
}

func TestDelay(t *testing.T) {
	t.Parallel()
	_, p := start(t)
	conn := connect(t, p)
	const each = 40 * time.Millisecond
	p.Delay(ToServer, each)
	p.Delay(ToClient, each)
	began := time.Now()
	say(t, conn, "a")
	hear(t, conn, "a")
	if took := time.Since(began); took < 2*each {
		t.Errorf("there and back took %v, want at least %v", took, 2*each)
	}
	p.Delay(ToServer, time.Hour)
	say(t, conn, "b")
	hearNothing(t, conn)
	p.Delay(ToServer, 0) // what waits is not left to the old time
	hear(t, conn, "b")
}

func TestCutAtOneMessage(t *testing.T) {
	t.Parallel()
	isB := func(chunk []byte) bool { return string(chunk) == "b" }
	for name, d := range map[string]Direction{"to server": ToServer, "to client": ToClient} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, p := start(t)
			conn, other := connect(t, p), connect(t, p)
			sprung := p.CutAt(d, isB)
			say(t, conn, "a")
			hear(t, conn, "a")
			say(t, conn, "b")
			hearEnd(t, conn)
			<-sprung
			if want := map[Direction]string{ToServer: "a", ToClient: "ab"}[d]; e.said() != want {
				t.Errorf("the server heard %q, want %q", e.said(), want)
			}
			say(t, other, "b") // once only, and only there
			hear(t, other, "b")
		})
	}
}

func TestNobodyListensBehindIt(t *testing.T) {
	t.Parallel()
	e := startEcho(t)
	p, err := New(e.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	e.listener.Close()
	wantTurnedAway(t, p)
}

// TestCloseWhileAllIsHeld: goleak sees what Close leaves behind.
func TestCloseWhileAllIsHeld(t *testing.T) {
	t.Parallel()
	_, p := start(t)
	conn := connect(t, p)
	say(t, conn, "a")
	hear(t, conn, "a")
	p.Swallow(ToServer, true)
	p.Delay(ToClient, time.Hour)
	say(t, conn, "b")
	p.Close()
	hearEnd(t, conn)
	if c, err := net.DialTimeout("tcp", p.Addr(), patience); err == nil {
		c.Close()
		t.Error("a closed proxy accepts")
	}
}

func TestThrough(t *testing.T) {
	t.Parallel()
	_, p := start(t)
	got, err := p.Through("postgres://u:p@10.0.0.1:5432/db?sslmode=disable")
	if want := "postgres://u:p@" + p.Addr() + "/db?sslmode=disable"; err != nil || got != want {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
	if _, err := p.Through("://"); err == nil {
		t.Error("no URL, and no error")
	}
}
