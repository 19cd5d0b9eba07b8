package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
)

// CertificateFiles are the files of a TLS server, in PEM.
type CertificateFiles struct {
	Cert, Key string
	// ClientCA are the authorities of client certificates; empty: none is asked for.
	ClientCA string
}

// Certificates are those of a TLS server, from files that may change at any time.
type Certificates struct {
	files   CertificateFiles
	log     *slog.Logger
	current atomic.Pointer[tls.Config]
	read    lastRead
}

// OpenCertificates reads the files; a bad one is an error. Pass follows their changes.
func OpenCertificates(files CertificateFiles, log *slog.Logger) (*Certificates, error) {
	c := &Certificates{files: files, log: log}
	if err := c.reload(); err != nil {
		return nil, err
	}
	return c, nil
}

// ServerConfig is the configuration of a listener: each handshake takes the certificates that
// are in force then. A client certificate is asked for where there are authorities; one that
// does not come from them, or not in its time, ends the handshake with that reason. Whether
// one is needed is decided with each call.
func (c *Certificates) ServerConfig() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2"},
		// A resumed session would go on with what was verified before a rotation.
		SessionTicketsDisabled: true,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return c.current.Load(), nil
		},
	}
}

// Pass reads the files again where they have changed. Bad ones are logged, once for each
// change, and the last good ones stay in force.
func (c *Certificates) Pass(ctx context.Context) {
	before := c.current.Load()
	if err := c.reload(); err != nil {
		c.log.ErrorContext(ctx, "the certificates are bad; the last good ones stay in force", "file", c.files.Cert, "error", err)
	} else if c.current.Load() != before {
		c.log.InfoContext(ctx, "the certificates were read again", "file", c.files.Cert,
			"valid_until", c.current.Load().Certificates[0].Leaf.NotAfter)
	}
}

func (c *Certificates) reload() error {
	cert, err := os.ReadFile(c.files.Cert)
	key, keyErr := os.ReadFile(c.files.Key)
	var ca []byte
	var caErr error
	if c.files.ClientCA != "" {
		ca, caErr = os.ReadFile(c.files.ClientCA)
	}
	// What stands behind each text keeps two files from being taken for one another.
	all := fmt.Appendf(nil, "%s\x00%s\x00%s\x00%v", cert, key, ca, errors.Join(err, keyErr, caErr))
	if !c.read.changed(all) {
		return nil
	}
	if err := errors.Join(err, keyErr, caErr); err != nil {
		return err
	}
	cfg, err := c.parse(cert, key, ca)
	if err != nil {
		return err
	}
	c.current.Store(cfg)
	return nil
}

func (c *Certificates) parse(cert, key, ca []byte) (*tls.Config, error) {
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, &FileError{Path: c.files.Cert, Err: fmt.Errorf("with the key %s: %w", c.files.Key, err)}
	}
	cfg := &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}, SessionTicketsDisabled: true, Certificates: []tls.Certificate{pair},
	}
	if c.files.ClientCA != "" {
		cfg.ClientAuth = tls.VerifyClientCertIfGiven
		cfg.ClientCAs = x509.NewCertPool()
		if !cfg.ClientCAs.AppendCertsFromPEM(ca) {
			return nil, &FileError{Path: c.files.ClientCA, Err: errors.New("holds no certificate")}
		}
	}
	return cfg, nil
}
