package rlock

import (
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/require"
)

// Sentinels get the times of the servers, unless they have their own.
func TestSentinelsAreDialledAsServers(t *testing.T) {
	for url, want := range map[string]time.Duration{
		"redis://127.0.0.1:26379?master_set=m":                  dialTimeout,
		"redis://127.0.0.1:26379?master_set=m&dial_timeout=30s": 30 * time.Second,
	} {
		redis, err := rueidis.ParseURL(url)
		require.NoError(t, err)
		o := forLocks(redis)
		require.Equal(t, want, o.Dialer.Timeout)
		require.Equal(t, want, o.Sentinel.Dialer.Timeout)
		require.Equal(t, o.Dialer.KeepAlive, o.Sentinel.Dialer.KeepAlive)
	}
	own := rueidis.ClientOption{Sentinel: rueidis.SentinelOption{MasterSet: "m"}}
	own.Dialer.Timeout, own.Sentinel.Dialer.Timeout = time.Minute, time.Second
	own.Dialer.KeepAlive = time.Hour
	o := forLocks(own)
	require.Equal(t, time.Second, o.Sentinel.Dialer.Timeout)
	require.Equal(t, time.Hour, o.Sentinel.Dialer.KeepAlive)
}
