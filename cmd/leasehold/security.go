package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/spf13/pflag"
	"google.golang.org/grpc/credentials"

	"github.com/leasehold/leasehold/server"
	"github.com/leasehold/leasehold/server/identity"
)

// SecurityConfig says who may call over which connection.
type SecurityConfig struct {
	TLSCert, TLSKey string
	TLSClientCA     string
	AccessFile      string
	Reflection      bool
	// AnyoneMayCall and PlainText are what an operator must say to go without authentication
	// or TLS where others than this machine reach the listener.
	AnyoneMayCall, PlainText bool
}

// securityFlags adds what serve and dev have in common about security.
func securityFlags(f *pflag.FlagSet, c *SecurityConfig) {
	f.StringVar(&c.TLSCert, "tls-cert", "", "PEM file of the certificate of gRPC, followed by its chain; read again when it changes")
	f.StringVar(&c.TLSKey, "tls-key", "", "PEM file of the key of --tls-cert")
	f.StringVar(&c.TLSClientCA, "tls-client-ca", "", "PEM file of the authorities of client certificates; read again when it changes")
	f.StringVar(&c.AccessFile, "access-file", "", "YAML file of tokens, client certificates and issuers of JWTs with their roles (docs/security.md); read again when it changes; without it anyone may call")
	f.BoolVar(&c.Reflection, "reflection", true, "let grpcurl and others read the API from the server")
	f.BoolVar(&c.AnyoneMayCall, "insecure-anyone-may-call", false, "allow to listen beyond this machine without --access-file: whoever reaches the port may do everything")
	f.BoolVar(&c.PlainText, "insecure-plain-text", false, "allow to listen beyond this machine with --access-file but without TLS: whoever is on the way can read tokens and payloads")
}

// faults are those of the files' names, and of a listener that is open without a word.
func (c *SecurityConfig) faults(listen string) []error {
	var faults []error
	if (c.TLSCert == "") != (c.TLSKey == "") {
		faults = append(faults, errors.New("--tls-cert and --tls-key belong together"))
	}
	if c.TLSClientCA != "" && c.TLSCert == "" {
		faults = append(faults, errors.New("--tls-client-ca needs --tls-cert"))
	}
	if c.TLSClientCA != "" && c.AccessFile == "" {
		faults = append(faults, errors.New("--tls-client-ca needs --access-file, which says who the certificates are"))
	}
	a, err := parseAddress(listen)
	if err != nil || a.local() {
		return faults
	}
	if c.AccessFile == "" && !c.AnyoneMayCall {
		faults = append(faults, fmt.Errorf("--listen %s can be reached from other machines: give --access-file and --tls-cert, or say --insecure-anyone-may-call", listen))
	}
	if c.AccessFile != "" && c.TLSCert == "" && !c.PlainText {
		faults = append(faults, fmt.Errorf("--listen %s can be reached from other machines, which send their tokens in plain text: give --tls-cert, or say --insecure-plain-text", listen))
	}
	return faults
}

// security is what the files of a SecurityConfig hold.
type security struct {
	access    *identity.Access       // nil: anyone may call
	certs     *identity.Certificates // nil: plain text
	watched   []identity.Watched
	configure func(*server.Config)
}

// openSecurity reads the files. A service never starts on a bad one.
func openSecurity(ctx context.Context, c *SecurityConfig, log *slog.Logger) (*security, error) {
	s := &security{}
	var err error
	if c.TLSCert != "" {
		files := identity.CertificateFiles{Cert: c.TLSCert, Key: c.TLSKey, ClientCA: c.TLSClientCA}
		if s.certs, err = identity.OpenCertificates(files, log); err != nil {
			return nil, fmt.Errorf("--tls-cert: %w", err)
		}
		s.watched = append(s.watched, s.certs)
	}
	if c.AccessFile != "" {
		if s.access, err = identity.OpenAccess(ctx, c.AccessFile, log); err != nil {
			return nil, fmt.Errorf("--access-file: %w", err)
		}
		s.watched = append(s.watched, s.access)
	}
	s.configure = func(cfg *server.Config) {
		cfg.NoReflection = !c.Reflection
		if s.access != nil {
			cfg.Access = s.access
		}
		if s.certs != nil {
			cfg.Transport = credentials.NewTLS(s.certs.ServerConfig())
		}
	}
	return s, nil
}

// logOpen says at each start what is open, where somebody could think otherwise.
func (c *SecurityConfig) logOpen(ctx context.Context, listen string, log *slog.Logger) {
	if a, err := parseAddress(listen); err != nil || a.local() {
		return
	}
	if c.AccessFile == "" {
		log.WarnContext(ctx, "anyone who reaches the gRPC port may do everything (--insecure-anyone-may-call)", "listen", listen)
	}
	if c.TLSCert == "" {
		log.WarnContext(ctx, "gRPC is plain text: whoever is on the way can read and change it", "listen", listen)
	}
}
