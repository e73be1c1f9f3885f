package calls_test

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
)

// A server shows a certificate for the URL's first host or for its own address; any other is refused.
func TestDialEither(t *testing.T) {
	addr, ca := redistest.StartTLS(t, redistest.Start(t).Addr()) // its certificate is for 127.0.0.1
	pem, err := os.ReadFile(ca)
	require.NoError(t, err)
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(pem))
	_, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	d := &net.Dialer{Timeout: time.Minute}
	for _, c := range []struct {
		first, addr string
		trusted     *x509.CertPool
		fails       string
	}{
		{"127.0.0.1", addr, roots, ""},
		{"sentinel.invalid", addr, roots, ""},
		{"", addr, roots, ""},
		{"127.0.0.1", "localhost:" + port, roots, ""},
		{"sentinel.invalid", "localhost:" + port, roots, "certificate is not valid for any names, but wanted to match localhost"},
		{"sentinel.invalid", addr, x509.NewCertPool(), "unknown authority"},
	} {
		conn, err := calls.DialEither(t.Context(), c.addr, d, &tls.Config{ServerName: c.first, RootCAs: c.trusted, MinVersion: tls.VersionTLS12})
		if c.fails != "" {
			require.ErrorContains(t, err, c.fails)
			continue
		}
		require.NoError(t, err)
		require.NoError(t, conn.Close())
	}
	conn, err := calls.DialEither(t.Context(), addr, d, nil)
	require.NoError(t, err)
	require.NoError(t, conn.Close())
}
