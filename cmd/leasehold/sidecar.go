package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"github.com/leasehold/leasehold/internal/sidecar"
)

// sidecarConfig is the configuration of one sidecar.
type sidecarConfig struct {
	Config     // Listen, HTTP, DrainTimeout, ReadyFile, LogLevel and LogFormat of it
	Upstream   string
	SocketMode string
	dial       dialConfig
}

func newSidecar(std streams, env lookupEnv) *cobra.Command {
	c := &sidecarConfig{}
	cmd := &cobra.Command{
		Use:   "sidecar",
		Short: "Stand beside a worker and forward its calls to the service",
		Long: "Serves the API on a unix socket or on loopback, and forwards each call to the replicas\n" +
			"of the service, with TLS and the identity of the sidecar. A worker beside it needs no TLS,\n" +
			"no credentials, no load balancing and no repetition of its own.\n\n" +
			"SIGTERM drains it: no more leases, heartbeats and ends go on until the workers have closed\n" +
			"their connections. A second signal ends it at once. docs/sidecar.md tells more.",
		Args: cobra.NoArgs,
	}
	f := cmd.Flags()
	sidecarFlags(f, c)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := errors.Join(applyEnv(f, env), c.validate()); err != nil {
			return &exitError{code: exitUsage, err: err}
		}
		log := newLogger(std.err, &c.Config)
		ctx, stop := untilSignal(cmd.Context(), log)
		defer stop()
		return failed(c.run(ctx, log))
	}
	return cmd
}

func sidecarFlags(f *pflag.FlagSet, c *sidecarConfig) {
	f.StringVar(&c.Listen, "listen", defaultAddress, "address for workers of this machine: unix:PATH, or host:port of loopback")
	f.StringVar(&c.SocketMode, "socket-mode", "0660", "permissions of the unix socket, octal")
	f.StringVar(&c.HTTP, "http", "127.0.0.1:7071", "address of /healthz, /readyz and /metrics: host:port or unix:PATH")
	f.StringVar(&c.Upstream, "upstream", "", "the service: host:port, where host may resolve to many replicas; several with commas between; or a gRPC target, as dns:///name:port")
	credentialFlags(f, &c.dial)
	f.DurationVar(&c.DrainTimeout, "drain-timeout", 25*time.Second, "how long workers may go on at shutdown, 0..1h")
	f.StringVar(&c.ReadyFile, "ready-file", "", "file to write when it listens, with the actual addresses; removed at exit")
	f.StringVar(&c.LogLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&c.LogFormat, "log-format", logText, "text or json")
}

// validate reports all faults at once.
func (c *sidecarConfig) validate() error {
	var faults []error
	fault := func(err error) { faults = append(faults, err) }
	if a, err := parseAddress(c.Listen); err != nil {
		fault(fmt.Errorf("--listen: %w", err))
	} else if !a.local() {
		fault(errors.New("--listen must be unix:PATH or an address of loopback: whoever reaches a sidecar acts with its identity"))
	}
	if _, err := parseAddress(c.HTTP); err != nil {
		fault(fmt.Errorf("--http: %w", err))
	}
	if c.Upstream == "" {
		fault(errors.New("--upstream is missing: where the service is, as leasehold:7070"))
	}
	local := true
	for _, at := range c.upstreams() {
		if strings.Contains(at, ":///") {
			if local = false; len(c.upstreams()) > 1 {
				fault(fmt.Errorf("--upstream: a gRPC target, as %s, must stand alone: in a list give host:port", at))
			}
			continue
		}
		a, err := parseAddress(at)
		if err != nil {
			fault(fmt.Errorf("--upstream: %w", err))
		}
		local = local && a.local()
	}
	fault(c.dial.validateCredentials(local))
	if _, err := c.mode(); err != nil {
		fault(err)
	}
	if c.DrainTimeout < 0 || c.DrainTimeout > time.Hour {
		fault(fmt.Errorf("--drain-timeout must be 0..1h, got %s", c.DrainTimeout))
	}
	if _, err := parseLevel(c.LogLevel); err != nil {
		fault(fmt.Errorf("--log-level: %w", err))
	}
	if c.LogFormat != logText && c.LogFormat != logJSON {
		fault(fmt.Errorf("--log-format must be %s or %s, got %q", logText, logJSON, c.LogFormat))
	}
	return errors.Join(faults...)
}

// upstreams are the addresses that were given.
func (c *sidecarConfig) upstreams() []string {
	var all []string
	for at := range strings.SplitSeq(c.Upstream, ",") {
		if at = strings.TrimSpace(at); at != "" {
			all = append(all, at)
		}
	}
	return all
}

func (c *sidecarConfig) mode() (fs.FileMode, error) {
	mode, err := strconv.ParseUint(c.SocketMode, 8, 32)
	if err != nil || mode > 0o777 {
		return 0, fmt.Errorf("--socket-mode must be octal, 0..777, got %q", c.SocketMode)
	}
	return fs.FileMode(mode), nil
}

func (c *sidecarConfig) run(ctx context.Context, log *slog.Logger) (err error) {
	if err := (readyFile{c.ReadyFile}).remove(); err != nil {
		return err
	}
	lanes, closeAll, err := c.connect()
	if err != nil {
		return err
	}
	defer closeAll()
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	s, err := sidecar.New(sidecar.Config{Polls: lanes[0], Beats: lanes[1], Calls: lanes[2], Log: log, Registry: registry})
	if err != nil {
		return err
	}
	l, err := c.listen(ctx)
	if err != nil {
		return err
	}
	status, err := listen(ctx, c.HTTP)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	web := &http.Server{Handler: s.HTTP(), ReadHeaderTimeout: httpPatience, ReadTimeout: httpPatience, WriteTimeout: 4 * httpPatience}
	ended := make(chan error, 2)
	go func() { ended <- web.Serve(status) }()
	go func() { ended <- s.Serve(l) }()
	defer func() { err = errors.Join(err, web.Close()) }()
	log.InfoContext(ctx, "sidecar listens", "version", version(), "listen", actualAddress(l), "http", actualAddress(status), "upstream", c.Upstream)
	if err := (readyFile{c.ReadyFile}).write(actualAddress(l), actualAddress(status)); err != nil {
		return err
	}
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.DrainTimeout)
	defer cancel()
	s.Drain(bounded)
	log.InfoContext(ctx, "drained")
	return (readyFile{c.ReadyFile}).remove()
}

// listen opens the socket for workers, with its permissions.
func (c *sidecarConfig) listen(ctx context.Context) (net.Listener, error) {
	mode, err := c.mode()
	if err != nil {
		return nil, err
	}
	l, err := listen(ctx, c.Listen)
	if err != nil || l.Addr().Network() != "unix" {
		return l, err
	}
	if err := os.Chmod(l.Addr().String(), mode); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// How the sidecar keeps its connections: a replica that vanished without a word is noticed
// before a lease runs out, and one that comes back is used at once.
const (
	upstreamPing    = 10 * time.Second
	upstreamSilence = 5 * time.Second
	reconnectMost   = 2 * time.Second
	roundRobin      = `{"loadBalancingConfig":[{"round_robin":{}}]}`
)

// connect prepares the connections for polls, for heartbeats and for all else. Each spreads its
// calls over all replicas.
func (c *sidecarConfig) connect() (lanes [3]*grpc.ClientConn, closeAll func(), err error) {
	closeAll = func() {
		for _, conn := range lanes {
			if conn != nil {
				_ = conn.Close() // it may be closed already
			}
		}
	}
	options, err := c.dial.options()
	if err != nil {
		return lanes, closeAll, err
	}
	options = append(options,
		grpc.WithDefaultServiceConfig(roundRobin),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: upstreamPing, Timeout: upstreamSilence, PermitWithoutStream: true}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: reconnectMost},
			MinConnectTimeout: upstreamSilence,
		}))
	for i := range lanes {
		target, more := c.target()
		if lanes[i], err = grpc.NewClient(target, append(options, more...)...); err != nil {
			closeAll()
			return lanes, closeAll, fmt.Errorf("--upstream: %w", err)
		}
	}
	return lanes, closeAll, nil
}

// target is what gRPC connects to: the one address, or a resolver that knows the list.
func (c *sidecarConfig) target() (string, []grpc.DialOption) {
	all := c.upstreams()
	if len(all) == 1 {
		return all[0], nil
	}
	list := manual.NewBuilderWithScheme("replicas")
	var state resolver.State
	for _, at := range all {
		host, _, _ := net.SplitHostPort(at) // was checked
		state.Endpoints = append(state.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{{Addr: at, ServerName: host}}})
	}
	list.InitialState(state)
	return list.Scheme() + ":///" + all[0], []grpc.DialOption{grpc.WithResolvers(list)}
}
