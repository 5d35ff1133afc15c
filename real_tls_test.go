package redlock_test

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
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/seed58520471/redlock"
	"github.com/seed58520471/redlock/internal/realredis"
	"github.com/stretchr/testify/require"
)

// selfSigned writes a certificate for 127.0.0.1 and its key, and returns the
// pool that trusts it.
func selfSigned(t *testing.T) (trust *x509.CertPool, certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "redlock test"},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA:         true, BasicConstraintsValid: true,
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)

	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})
	require.NoError(t, os.WriteFile(certFile, certPEM, 0o600))
	require.NoError(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600))
	trust = x509.NewCertPool()
	require.True(t, trust.AppendCertsFromPEM(certPEM))
	return trust, certFile, keyFile
}

// startTLS runs n servers that have a TLS port too, and returns these ports'
// addresses.
func startTLS(t *testing.T, n int) (ns nodes, addrs []string, trust *x509.CertPool) {
	t.Helper()
	trust, cert, key := selfSigned(t)
	for range n {
		port, err := realredis.FreePort()
		require.NoError(t, err)
		ns = append(ns, startNodes(t, 1, "--tls-port", port,
			"--tls-cert-file", cert, "--tls-key-file", key, "--tls-auth-clients", "no")...)
		addrs = append(addrs, net.JoinHostPort("127.0.0.1", port))
	}
	return ns, addrs, trust
}

func TestLocksWorkOverTLS(t *testing.T) {
	ns, addrs, trust := startTLS(t, 3)
	l := newLocker(t, ns.clients(t, func(i int, o *redis.Options) {
		o.Addr, o.TLSConfig = addrs[i], &tls.Config{RootCAs: trust}
	}))
	lease := lock(t, l, "orders")
	ns.eventuallyHold(t, lease, soon)
	require.NoError(t, lease.Extend(t.Context(), 2*ttl))
	unlock(t, lease)
	ns.eventuallyEmpty(t, soon)
}

func TestTLSAgainstAPlainPortAndTheReverseIsABrokenNode(t *testing.T) {
	ns, addrs, trust := startTLS(t, 5)
	l := newLocker(t, ns.clients(t, func(i int, o *redis.Options) {
		switch i {
		case 0: // TLS to the plain port
			o.TLSConfig = &tls.Config{RootCAs: trust}
		case 1: // plain to the TLS port
			o.Addr = addrs[i]
		default:
			o.Addr, o.TLSConfig = addrs[i], &tls.Config{RootCAs: trust}
		}
	}))
	for range 3 {
		lease := lock(t, l, "orders")
		ns[2:].eventuallyHold(t, lease, soon)
		unlock(t, lease)
		ns.eventuallyEmpty(t, soon)
	}
}

func TestOpenChecksTheCertificate(t *testing.T) {
	ns, addrs, _ := startTLS(t, 3)
	urls := make([]string, len(addrs))
	for i, addr := range addrs {
		urls[i] = "rediss://" + addr
	}
	l, err := redlock.Open(urls, defaults()...)
	require.NoError(t, err)
	defer l.Close()
	_, err = l.TryLock(t.Context(), "orders")
	require.ErrorIs(t, err, redlock.ErrNoQuorum)
	require.ErrorContains(t, err, "certificate")
	var unknown x509.UnknownAuthorityError
	require.ErrorAs(t, err, &unknown)
	ns.eventuallyEmpty(t, soon)
}
