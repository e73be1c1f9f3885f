package redistest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
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
	addr, ca, _ = startTLS(tb, target, tls.NoClientCert)
	return addr, ca
}

// StartMutualTLS is StartTLS with a server that asks for a client certificate, as redis-server does by default. All trust one certificate.
func StartMutualTLS(tb testing.TB, target string) (addr, cert, key string) {
	tb.Helper()
	return startTLS(tb, target, tls.RequireAndVerifyClientCert)
}

func startTLS(tb testing.TB, target string, clients tls.ClientAuthType) (addr, certFile, keyFile string) {
	tb.Helper()
	cert, certFile, keyFile := certificateFiles(tb)
	trusted := x509.NewCertPool()
	trusted.AddCert(cert.Leaf)
	ln, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{cert}, ClientAuth: clients, ClientCAs: trusted, MinVersion: tls.VersionTLS12,
	})
	if err != nil {
		tb.Fatalf("redistest: TLS: %v", err)
	}
	tb.Cleanup(func() { _ = ln.Close() })
	go serveTLS(ln, target) // ends with the listener
	return ln.Addr().String(), certFile, keyFile
}

// certificateFiles returns a new certificate, and the files with it and its key.
func certificateFiles(tb testing.TB) (cert tls.Certificate, certFile, keyFile string) {
	tb.Helper()
	cert, der, pkcs8, err := ownCertificate()
	if err != nil {
		tb.Fatalf("redistest: certificate: %v", err)
	}
	write := func(name, kind string, bytes []byte) string {
		file := filepath.Join(tb.TempDir(), name)
		if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes}), 0o600); err != nil {
			tb.Fatal(err)
		}
		return file
	}
	return cert, write("cert.pem", "CERTIFICATE", der), write("key.pem", "PRIVATE KEY", pkcs8)
}

func ownCertificate() (cert tls.Certificate, der, pkcs8 []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return cert, nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err1 := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	leaf, err2 := x509.ParseCertificate(der)
	pkcs8, err3 := x509.MarshalPKCS8PrivateKey(key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, der, pkcs8, errors.Join(err1, err2, err3)
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
