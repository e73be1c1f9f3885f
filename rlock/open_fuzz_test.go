package rlock_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/require"
	"github.com/go-rlock/rlock/rlock"
)

// FuzzURL: if nothing can be dialed, Open returns a one-line error without the password, whatever the URL.
func FuzzURL(f *testing.F) {
	for _, seed := range [][2]string{
		{"redis://shop:", "@127.0.0.1:6379/0?dial_timeout=2s"},
		{"rediss://:", "@redis.example:6379?skip_verify"},
		{"unix://shop:", "@/run/redis.sock?db=3"},
		{"redis://shop:", "@127.0.0.1:26379?master_set=main&addr=127.0.0.1:26380"},
		{"redis://shop:", "/@127.0.0.1"},
		{"", "://%zz"},
	} {
		f.Add(seed[0], seed[1])
	}
	const secret = "correct-horse"
	refused := errors.New("refused")
	f.Fuzz(func(t *testing.T, before, after string) {
		url := before + secret + after
		o, err := rueidis.ParseURL(url)
		if err != nil {
			_, err = rlock.Open(url, rlock.Options{})
			require.Error(t, err)
			require.NotContains(t, err.Error(), secret)
			return
		}
		o.DialCtxFn = func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) { return nil, refused }
		_, err = rlock.OpenWith(o, rlock.Options{})
		require.Error(t, err)
		if address := strings.Join(o.InitAddress, ",") + o.Sentinel.MasterSet; !strings.Contains(address, secret) {
			require.NotContains(t, err.Error(), secret)
		}
	})
}
