package calls

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
)

// DialEither is a rueidis.ClientOption's DialCtxFn for the addresses of a URL. For TLS, rueidis has each server show a certificate for the
// URL's first host. Behind sentinels and in a cluster servers have names of their own, so a certificate for the address will do as well.
func DialEither(ctx context.Context, addr string, d *net.Dialer, config *tls.Config) (net.Conn, error) {
	conn, err := Dial(ctx, addr, d, config)
	if config == nil {
		return conn, err
	}
	var another x509.HostnameError
	if host, _, bad := net.SplitHostPort(addr); bad == nil && host != config.ServerName && errors.As(err, &another) {
		config = config.Clone()
		config.ServerName = host
		conn, err = Dial(ctx, addr, d, config)
	}
	return conn, err
}

// Dial dials as rueidis does by itself.
func Dial(ctx context.Context, addr string, d *net.Dialer, config *tls.Config) (net.Conn, error) {
	if config == nil {
		return d.DialContext(ctx, "tcp", addr)
	}
	return (&tls.Dialer{NetDialer: d, Config: config}).DialContext(ctx, "tcp", addr)
}
