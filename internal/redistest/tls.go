package redistest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// StartTLS puts TLS before the server at target. It returns the address and the file of its self-signed certificate, which is its own CA.
// The test's clean-up ends it.
func StartTLS(tb testing.TB, target string) (addr, ca string) {
	tb.Helper()
	cert, der, err := ownCertificate()
	if err != nil {
		tb.Fatalf("redistest: certificate: %v", err)
	}
	ca = filepath.Join(tb.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		tb.Fatal(err)
	}
	ln, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12})
	if err != nil {
		tb.Fatalf("redistest: TLS: %v", err)
	}
	tb.Cleanup(func() { _ = ln.Close() })
	go serveTLS(ln, target) // ends with the listener
	return ln.Addr().String(), ca
}

func ownCertificate() (cert tls.Certificate, der []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return cert, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err = x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, der, err
}

func serveTLS(ln net.Listener, target string) {
	for {
		front, err := ln.Accept()
		if err != nil {
			return
		}
		back, err := net.Dial("tcp", target)
		if err != nil {
			_ = front.Close()
			continue
		}
		pass := func(to, from net.Conn) { // ends when either side closes
			_, _ = io.Copy(to, from)
			_, _ = to.Close(), from.Close()
		}
		go pass(front, back)
		go pass(back, front)
	}
}
