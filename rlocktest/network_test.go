package rlocktest

import (
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func connected(t *testing.T) (n *network, client, server net.Conn) {
	t.Helper()
	n = newNetwork()
	client, server, err := n.connect()
	require.NoError(t, err)
	return n, client, server
}

func hears(t *testing.T, conn net.Conn, want string) {
	t.Helper()
	got := make([]byte, len(want))
	_, err := io.ReadFull(conn, got)
	require.NoError(t, err)
	require.Equal(t, want, string(got))
}

func says(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	n, err := io.WriteString(conn, text)
	require.NoError(t, err)
	require.Equal(t, len(text), n)
}

// Both ends may write any amount before the other reads. Data written before a Close can still be read.
func TestConnHasABuffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, client, server := connected(t)
		much := strings.Repeat("much", 1<<20)
		says(t, client, much)
		says(t, server, much)
		says(t, server, "!")
		hears(t, client, much)
		hears(t, client, "!")
		require.NoError(t, client.Close())
		require.NoError(t, client.Close())
		hears(t, server, much)
		_, err := server.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
		_, err = server.Write([]byte("late"))
		require.ErrorIs(t, err, net.ErrClosed)
		require.Empty(t, n.links)
	})
}

// A read blocks until data, a Close, or its deadline, which may change meanwhile.
func TestConnWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, client, server := connected(t)
		time.AfterFunc(time.Hour, func() { _, _ = io.WriteString(server, "hello") })
		hears(t, client, "hello")

		began := time.Now()
		require.NoError(t, client.SetDeadline(began.Add(time.Hour)))
		time.AfterFunc(time.Minute, func() { _ = client.SetDeadline(began.Add(2 * time.Minute)) })
		_, err := client.Read(make([]byte, 1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Equal(t, 2*time.Minute, time.Since(began))
		_, err = client.Read(make([]byte, 1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)

		require.NoError(t, client.SetReadDeadline(time.Now().Add(time.Minute)))
		time.AfterFunc(time.Second, func() { _ = client.SetReadDeadline(time.Time{}) })
		time.AfterFunc(time.Hour, func() { _ = server.Close() })
		_, err = client.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
	})
}

// A failed network loses traffic in both directions. Connections that lost traffic break when it is restored.
func TestNetworkFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, client, server := connected(t)
		idle, other, err := n.connect()
		require.NoError(t, err)
		says(t, client, "before")
		n.fail()
		says(t, client, "lost")
		says(t, server, "lost, too")
		late, lateServer, err := n.connect()
		require.NoError(t, err)
		says(t, late, "hello?")
		require.NoError(t, client.SetReadDeadline(time.Now().Add(time.Minute)))
		_, err = client.Read(make([]byte, 1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		n.restore()
		hears(t, server, "before")
		for _, broken := range []net.Conn{client, server, late, lateServer} {
			_, err = broken.Read(make([]byte, 1))
			require.ErrorIs(t, err, io.EOF)
		}
		says(t, idle, "still here")
		hears(t, other, "still here")

		n.close()
		_, err = idle.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
		_, _, err = n.connect()
		require.ErrorIs(t, err, net.ErrClosed)
	})
}
