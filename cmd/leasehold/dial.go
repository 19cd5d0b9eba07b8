package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

const (
	defaultAddress = "127.0.0.1:7070"
	// caSystem is the value of --tls-ca for the roots of the system.
	caSystem = "system"
	// maxTokenFile is far above any token; a wrong path may lead to something huge.
	maxTokenFile = 64 << 10
)

// dialConfig says how a command reaches a running service. Its zero value is not usable:
// dialFlags gives the defaults.
type dialConfig struct {
	Address         string
	TLSCA           string
	TLSCert, TLSKey string
	TokenFile       string
}

// dialFlags adds the flags of every command that is a client of a running service. They can
// be given by the environment, as all flags: applyEnv before dial.
func dialFlags(f *pflag.FlagSet, c *dialConfig) {
	f.StringVar(&c.Address, "address", defaultAddress, "address of the service: host:port or unix:PATH")
	credentialFlags(f, c)
}

// credentialFlags adds those by which a client shows who it is, and knows the service.
func credentialFlags(f *pflag.FlagSet, c *dialConfig) {
	f.StringVar(&c.TLSCA, "tls-ca", "", "PEM file of the authorities that the service's certificate may come from, or the word system; without it the connection is plain text")
	f.StringVar(&c.TLSCert, "tls-cert", "", "PEM file of the certificate to show to the service")
	f.StringVar(&c.TLSKey, "tls-key", "", "PEM file of the key of --tls-cert")
	f.StringVar(&c.TokenFile, "token-file", "", "file that holds the bearer token; it is read again for each call")
}

// validate reports all faults at once. It looks at no file.
func (c *dialConfig) validate() error {
	var faults []error
	a, err := parseAddress(c.Address)
	if err != nil {
		faults = append(faults, fmt.Errorf("--address: %w", err))
	}
	return errors.Join(append(faults, c.validateCredentials(err != nil || a.local()))...)
}

// validateCredentials reports faults of the other flags. local: only this machine can read what
// is sent.
func (c *dialConfig) validateCredentials(local bool) error {
	var faults []error
	if (c.TLSCert == "") != (c.TLSKey == "") {
		faults = append(faults, errors.New("--tls-cert and --tls-key belong together"))
	}
	if c.TLSCert != "" && c.TLSCA == "" {
		faults = append(faults, fmt.Errorf("--tls-cert needs --tls-ca: a file, or %s", caSystem))
	}
	if c.TokenFile != "" && c.TLSCA == "" && !local {
		faults = append(faults, errors.New("--token-file needs --tls-ca, except for an address of this machine: anyone on the way could read the token"))
	}
	return errors.Join(faults...)
}

// dial makes a connection to the service. It does not wait for it: the first call does, up
// to its own deadline. Errors are about the configuration: a fault of a flag, or a file that
// cannot be used. The caller closes the connection.
func (c *dialConfig) dial(_ context.Context) (*grpc.ClientConn, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	options, err := c.options()
	if err != nil {
		return nil, err
	}
	return grpc.NewClient(c.Address, options...)
}

// options are those of a connection: TLS, the token, keepalive. It looks at the files.
func (c *dialConfig) options() ([]grpc.DialOption, error) {
	transport := insecure.NewCredentials()
	if c.TLSCA != "" {
		cfg, err := c.tlsConfig()
		if err != nil {
			return nil, err
		}
		transport = credentials.NewTLS(cfg)
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(transport),
		// A service that vanished without a word is noticed; it allows a ping each 5 s.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 15 * time.Second, Timeout: 10 * time.Second}),
	}
	if c.TokenFile != "" {
		token := tokenFile{path: c.TokenFile, secure: c.TLSCA != ""}
		if _, err := token.read(); err != nil {
			return nil, err
		}
		options = append(options, grpc.WithPerRPCCredentials(token))
	}
	return options, nil
}

func (c *dialConfig) tlsConfig() (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.TLSCA != caSystem {
		text, err := os.ReadFile(c.TLSCA)
		if err != nil {
			return nil, fmt.Errorf("--tls-ca: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("--tls-ca: %s holds no certificate", c.TLSCA)
		}
	}
	if c.TLSCert == "" {
		return cfg, nil
	}
	load := func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(c.TLSCert, c.TLSKey)
		if err != nil {
			return nil, fmt.Errorf("--tls-cert: %w", err)
		}
		return &pair, nil
	}
	if _, err := load(); err != nil {
		return nil, err
	}
	// Read at each handshake, so that a process that runs for months follows a rotation.
	cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	return cfg, nil
}

// tokenFile sends the token of a file with each call. It is read each time, because
// whoever rotates tokens expects running processes to follow.
type tokenFile struct {
	path   string
	secure bool
}

func (t tokenFile) read() (string, error) {
	info, err := os.Stat(t.path)
	if err != nil {
		return "", fmt.Errorf("--token-file: %w", err)
	}
	if info.Size() > maxTokenFile {
		return "", fmt.Errorf("--token-file: %s has %d bytes, that is no token", t.path, info.Size())
	}
	text, err := os.ReadFile(t.path)
	if err != nil {
		return "", fmt.Errorf("--token-file: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fmt.Errorf("--token-file: %s must hold one token, of one line of ASCII without spaces", t.path)
	}
	return token, nil
}

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (t tokenFile) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token, err := t.read()
	if err != nil {
		return nil, err
	}
	return map[string]string{"authorization": "Bearer " + token}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials. Without TLS, validate
// has let only addresses of this machine through.
func (t tokenFile) RequireTransportSecurity() bool { return t.secure }

// local tells whether only this machine can reach an address.
func (a address) local() bool {
	if a.network == "unix" {
		return true
	}
	host, _, err := net.SplitHostPort(a.at)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
