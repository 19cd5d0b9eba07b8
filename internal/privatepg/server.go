package privatepg

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"
)

const (
	// fastPatience is how long a fast shutdown may take (it writes a checkpoint)
	// before an immediate one follows.
	fastPatience = 20 * time.Second
	// immediatePatience: PostgreSQL itself kills its children after 5 s.
	immediatePatience = 10 * time.Second
	// orphanPatience is how long the server of a killed predecessor may take to end.
	orphanPatience = 15 * time.Second
)

// Server is one private PostgreSQL server. Its methods may be called from
// several goroutines.
type Server struct {
	cfg      Config
	log      *slog.Logger
	layout   *layout
	account  account
	bin      Binaries
	password string
	port     int

	// mu lets one call at a time change what runs.
	mu sync.Mutex
	// proc is the newest run of the server, ended or not.
	proc *process
}

// Start makes the data directory if need be, starts a server on it and returns
// when it accepts connections. The context bounds the start only; the server
// ends by Stop, or with this process.
//
// Fails with *[NotFoundError], *[InUseError], *[VersionError],
// *[NotTraversableError], *[ForeignDataError], *[PasswordMissingError] or
// *[StartError], and then leaves nothing behind but, maybe, a data directory.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	l, who, err := newLayout(cfg)
	if err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, log: cfg.Logger, layout: l, account: who}
	if err := s.begin(ctx); err != nil {
		if releaseErr := l.release(); releaseErr != nil {
			s.log.Warn("runtime folder of PostgreSQL not removed", "error", releaseErr)
		}
		return nil, err
	}
	return s, nil
}

func (s *Server) begin(ctx context.Context) error {
	if err := awaitNoPostmaster(ctx, s.layout.pgdata(), orphanPatience); err != nil {
		return err
	}
	bin, password, err := prepareCluster(ctx, s.layout, s.account, s.cfg)
	if err != nil {
		return err
	}
	s.bin, s.password = bin, password
	return s.launchOnPort(ctx)
}

// URL is the connection URL of a database of the server, password included:
// over TCP, or over the unix socket where there is no TCP port.
func (s *Server) URL(database string) string {
	if s.cfg.SocketOnly {
		return s.SocketURL(database)
	}
	return s.url(database, "127.0.0.1")
}

// SocketURL is the connection URL over the unix socket.
func (s *Server) SocketURL(database string) string {
	return s.url(database, s.layout.sockets())
}

func (s *Server) url(database, host string) string {
	u := url.URL{Scheme: "postgres", User: url.UserPassword(superuser, s.password), Path: "/" + database}
	query := url.Values{"sslmode": {"disable"}}
	if host[0] == '/' {
		query.Set("host", host)
		query.Set("port", strconv.Itoa(s.port))
	} else {
		u.Host = host + ":" + strconv.Itoa(s.port)
	}
	u.RawQuery = query.Encode()
	return u.String()
}

// DataDir is PostgreSQL's own data directory.
func (s *Server) DataDir() string { return s.layout.pgdata() }

// LogFile is where the server writes its log.
func (s *Server) LogFile() string { return s.layout.log() }

// Port is the server's TCP port on 127.0.0.1, and part of its socket's name.
func (s *Server) Port() int { return s.port }

// Major is the server's major version.
func (s *Server) Major() int { return s.bin.Major }

// Done is closed when the present run of the server ends, wanted or not. After
// Restart there is another run with another channel.
func (s *Server) Done() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc.done
}

// Stop ends the server for good: clients are disconnected, data is written (or
// removed, if the server is ephemeral). A shutdown that takes longer than 20 s
// or than the context is followed by an immediate one, after which a kept
// server recovers at its next start. An error says that a process could not be
// signalled or a folder not removed. A second Stop does nothing.
func (s *Server) Stop(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.end(ctx, s.cfg.Ephemeral), s.layout.release())
}

// Halt shuts the server down in an orderly way and keeps everything for Restart.
func (s *Server) Halt(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end(ctx, false)
}

// Kill ends the server like a crash: no checkpoint, clients cut off. Restart
// recovers from it.
func (s *Server) Kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end(context.Background(), true)
}

// Restart starts the server again on the same data and port, after an orderly
// shutdown if it runs.
func (s *Server) Restart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.layout.locks) == 0 {
		return &NotRunningError{Call: "restart"}
	}
	if err := s.end(ctx, false); err != nil {
		return err
	}
	return s.launch(ctx)
}

// end makes the present run end, by force in the end. It wakes a frozen server
// first, which would never hear a signal.
func (s *Server) end(ctx context.Context, immediate bool) error {
	if !s.proc.running() {
		return nil
	}
	if err := s.thaw(); err != nil {
		return err
	}
	if !immediate {
		ended, err := s.proc.stopWith(ctx, syscall.SIGINT, fastPatience)
		if ended || err != nil {
			return err
		}
		s.log.Warn("PostgreSQL did not shut down in time, it is ended at once", "pid", s.proc.pid)
	}
	// The caller's deadline has had its say: what runs must end now.
	ended, err := s.proc.stopWith(context.WithoutCancel(ctx), syscall.SIGQUIT, immediatePatience)
	if ended || err != nil {
		return err
	}
	s.log.Warn("PostgreSQL ignored an immediate shutdown, it is killed", "pid", s.proc.pid)
	return s.proc.destroy()
}

// maxLogSize is where openLog begins a new log and keeps one old.
const maxLogSize = 16 << 20

// openLog opens the log for appending and says where this run's part begins.
func openLog(path string) (*os.File, int64, error) {
	if info, err := os.Stat(path); err == nil && info.Size() > maxLogSize {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, 0, err
		}
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, 0, err
	}
	info, err := file.Stat()
	if err != nil {
		file.Close()
		return nil, 0, err
	}
	return file, info.Size(), nil
}
