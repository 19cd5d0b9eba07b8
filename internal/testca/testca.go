// Package testca makes authorities and certificates for tests of TLS.
package testca

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// CA is an authority.
type CA struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	// File is its certificate, in PEM.
	File string
}

// New makes an authority with a name.
func New(t testing.TB, name string) *CA {
	t.Helper()
	ca := &CA{File: filepath.Join(t.TempDir(), name+".pem")}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(48 * time.Hour),
	}
	ca.key = newKey(t)
	der := sign(t, template, template, ca.key, ca.key)
	var err error
	if ca.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	write(t, ca.File, "CERTIFICATE", der)
	return ca
}

// Pool is what trusts the authority alone.
func (ca *CA) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	return pool
}

// Spec says what stands in a certificate.
type Spec struct {
	CN   string
	DNS  []string
	URI  string
	From time.Time // default: yesterday
	To   time.Time // default: tomorrow
}

// Cert writes a certificate for servers at 127.0.0.1 and for clients, and its key, into files
// of a folder.
func (ca *CA) Cert(t testing.TB, dir string, spec Spec) (certFile, keyFile string) {
	t.Helper()
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: spec.CN}, DNSNames: spec.DNS, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		NotBefore:   time.Now().Add(-24 * time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	if !spec.From.IsZero() {
		template.NotBefore = spec.From
	}
	if !spec.To.IsZero() {
		template.NotAfter = spec.To
	}
	if spec.URI != "" {
		uri, err := url.Parse(spec.URI)
		if err != nil {
			t.Fatal(err)
		}
		template.URIs = []*url.URL{uri}
	}
	key := newKey(t)
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	write(t, certFile, "CERTIFICATE", sign(t, template, ca.cert, key, ca.key))
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, keyFile, "PRIVATE KEY", der)
	return certFile, keyFile
}

// Pair is Cert for a client in this process.
func (ca *CA) Pair(t testing.TB, spec Spec) tls.Certificate {
	t.Helper()
	certFile, keyFile := ca.Cert(t, t.TempDir(), spec)
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func sign(t testing.TB, template, parent *x509.Certificate, key, by *ecdsa.PrivateKey) []byte {
	t.Helper()
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber = serial
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, by)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func write(t testing.TB, path, kind string, der []byte) {
	t.Helper()
	text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}
