package main

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// echo returns its input at once.
func echo(t *testing.T) (addr string) {
	t.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() { // ends with the listener; the others with their connections
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
	t.Cleanup(func() {
		_ = ln.Close()
		<-done
	})
	return ln.Addr().String()
}

func delayed(t *testing.T, rtt time.Duration) net.Conn {
	t.Helper()
	d, err := startDelayLine(echo(t), rtt)
	require.NoError(t, err)
	t.Cleanup(d.close)
	c, err := net.Dial("tcp4", d.addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestDelayLineDelays(t *testing.T) {
	const rtt = 20 * time.Millisecond
	c := delayed(t, rtt)
	buf := make([]byte, 4)
	fastest := time.Hour
	for range 5 {
		start := time.Now()
		_, err := c.Write([]byte("ping"))
		require.NoError(t, err)
		_, err = io.ReadFull(c, buf)
		require.NoError(t, err)
		took := time.Since(start)
		assert.GreaterOrEqual(t, took, rtt)
		fastest = min(fastest, took)
	}
	assert.Less(t, fastest, 2*rtt)
}

// Many connections do not add to the delay, even if there are more of them than processors.
func TestDelayLineDelaysManyAlike(t *testing.T) {
	const rtt, conns, times = 10 * time.Millisecond, 24, 20
	d, err := startDelayLine(echo(t), rtt)
	require.NoError(t, err)
	t.Cleanup(d.close)
	var hist histogram
	var wg sync.WaitGroup
	for range conns {
		c, err := net.Dial("tcp4", d.addr)
		require.NoError(t, err)
		wg.Go(func() {
			defer c.Close()
			buf := make([]byte, 4)
			for range times {
				start := time.Now()
				_, err := c.Write([]byte("ping"))
				if !assert.NoError(t, err) {
					return
				}
				_, err = io.ReadFull(c, buf)
				if !assert.NoError(t, err) {
					return
				}
				hist.record(time.Since(start))
			}
		})
	}
	wg.Wait()
	assert.GreaterOrEqual(t, hist.quantile(0.01), rtt*98/100) // to the histogram's precision
	assert.Less(t, hist.quantile(0.5), rtt*3/2)
}

// Messages sent together arrive together: 200 messages one after the other would take 4 s.
func TestDelayLineIsAPipeAndKeepsOrder(t *testing.T) {
	const (
		rtt = 20 * time.Millisecond
		n   = 200
	)
	c := delayed(t, rtt)
	start := time.Now()
	for i := range uint32(n) {
		_, err := c.Write(binary.BigEndian.AppendUint32(nil, i))
		require.NoError(t, err)
	}
	buf := make([]byte, 4)
	for i := range uint32(n) {
		_, err := io.ReadFull(c, buf)
		require.NoError(t, err)
		require.Equal(t, i, binary.BigEndian.Uint32(buf))
	}
	took := time.Since(start)
	assert.GreaterOrEqual(t, took, rtt)
	assert.Less(t, took, time.Second)
}

func TestDelayLineEndsWithItsTarget(t *testing.T) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	d, err := startDelayLine(ln.Addr().String(), 2*time.Millisecond)
	require.NoError(t, err)
	defer d.close()
	near, err := net.Dial("tcp4", d.addr)
	require.NoError(t, err)
	defer near.Close()
	far, err := ln.Accept()
	require.NoError(t, err)
	_, err = far.Write([]byte("bye"))
	require.NoError(t, err)
	require.NoError(t, far.Close())
	require.NoError(t, near.SetReadDeadline(time.Now().Add(10*time.Second)))
	said, err := io.ReadAll(near)
	require.NoError(t, err, "the end arrives, too")
	assert.Equal(t, "bye", string(said), "after the data sent before it")
}
