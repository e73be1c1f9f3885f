package memnet_test

import (
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/testing/bubble"
	"github.com/go-rlock/rlock/internal/testing/memnet"
	"github.com/go-rlock/rlock/internal/testing/require"
)

// inBubble runs a test with a way to a server that repeats what it gets.
func inBubble(t *testing.T, o memnet.Options, test func(t *testing.T, w *memnet.Way)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		o.Serve = func(conn net.Conn) {
			go func() { // ends with the connection
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			}()
		}
		w := memnet.New(o)
		t.Cleanup(w.Kill) // no time passes any more for the end of a connection to arrive
		test(t, w)
	})
}

func dial(t *testing.T, w *memnet.Way) net.Conn {
	t.Helper()
	conn, err := w.Dial()
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// says sends a text, and returns what came back within a minute, and after how long.
func says(t *testing.T, conn net.Conn, text string) (answer string, after time.Duration, err error) {
	t.Helper()
	began := time.Now()
	if _, err := io.WriteString(conn, text); err != nil {
		return "", 0, err
	}
	return hears(t, conn, began)
}

func hears(t *testing.T, conn net.Conn, since time.Time) (text string, after time.Duration, err error) {
	t.Helper()
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	b := make([]byte, 100)
	n, err := conn.Read(b)
	return string(b[:n]), time.Since(since), err
}

func requireSays(t *testing.T, conn net.Conn, text string, after time.Duration) {
	t.Helper()
	got, took, err := says(t, conn, text)
	require.NoError(t, err)
	require.Equal(t, text, got)
	require.Equal(t, after, took)
}

func TestMessagesTakeTheirTime(t *testing.T) {
	inBubble(t, memnet.Options{}, func(t *testing.T, w *memnet.Way) { requireSays(t, dial(t, w), "x", 0) })
	inBubble(t, memnet.Options{Latency: func() time.Duration { return time.Second }}, func(t *testing.T, w *memnet.Way) {
		requireSays(t, dial(t, w), "x", 2*time.Second)
	})
}

// A later message with a shorter way does not overtake.
func TestMessagesStayInOrder(t *testing.T) {
	latency := 3 * time.Second
	inBubble(t, memnet.Options{Latency: func() time.Duration { latency -= time.Second; return latency }}, func(t *testing.T, w *memnet.Way) {
		conn := dial(t, w)
		began := time.Now()
		_, err := io.WriteString(conn, "a") // 2 s
		require.NoError(t, err)
		_, err = io.WriteString(conn, "b") // 1 s
		require.NoError(t, err)
		latency = time.Second // no time on the way back
		text, after, err := hears(t, conn, began)
		require.NoError(t, err)
		require.Equal(t, "ab", text)
		require.Equal(t, 2*time.Second, after)
	})
}

func TestHeldMessagesArriveLater(t *testing.T) {
	for name, hold := range map[string]func(*memnet.Way){"all": (*memnet.Way).Hold, "open": (*memnet.Way).HoldOpen} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, memnet.Options{}, func(t *testing.T, w *memnet.Way) {
				conn := dial(t, w)
				hold(w)
				if name == "open" {
					requireSays(t, dial(t, w), "another", 0)
				}
				time.AfterFunc(5*time.Second, w.Free)
				requireSays(t, conn, "x", 5*time.Second)
			})
		})
	}
}

// Silence is not an end: whoever reads waits until its own time is over. What has lost something breaks when it ends, and nothing else.
func TestSilenceIsNotAnEnd(t *testing.T) {
	inBubble(t, memnet.Options{}, func(t *testing.T, w *memnet.Way) {
		lost, spared := dial(t, w), dial(t, w)
		w.Silence()
		_, after, err := says(t, lost, "x")
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Equal(t, time.Minute, after)
		w.Heal()
		_, _, err = says(t, lost, "x")
		require.ErrorIs(t, err, net.ErrClosed)
		requireSays(t, spared, "x", 0)
		requireSays(t, dial(t, w), "x", 0)
	})
}

func TestCutEndsBothEnds(t *testing.T) {
	inBubble(t, memnet.Options{}, func(t *testing.T, w *memnet.Way) {
		listening, other := dial(t, w), dial(t, w)
		requireSays(t, listening, "SUBSCRIBE", 0)
		require.Equal(t, 2, w.Conns())
		w.Cut((*memnet.Link).Listens)
		_, _, err := hears(t, listening, time.Now())
		require.ErrorIs(t, err, io.EOF)
		requireSays(t, other, "x", 0)
		w.Cut(nil)
		_, _, err = hears(t, other, time.Now())
		require.ErrorIs(t, err, io.EOF)
		require.Equal(t, 0, w.Conns())
	})
}

func TestRefusedAndKilled(t *testing.T) {
	inBubble(t, memnet.Options{}, func(t *testing.T, w *memnet.Way) {
		conn := dial(t, w)
		w.Refuse(true)
		_, err := w.Dial()
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		requireSays(t, conn, "x", 0)
		w.Refuse(false)
		requireSays(t, dial(t, w), "x", 0)
		w.Kill()
		_, err = w.Dial()
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		_, _, err = hears(t, conn, time.Now())
		require.ErrorIs(t, err, io.EOF)
	})
}

// A lost reply takes its connection along, so that the client does not take the next one for it.
func TestALostReplyBreaksItsConnection(t *testing.T) {
	inBubble(t, memnet.Options{}, func(t *testing.T, w *memnet.Way) {
		listening, conn := dial(t, w), dial(t, w)
		requireSays(t, listening, "SUBSCRIBE", 0)
		w.LoseReplies(1)
		requireSays(t, listening, "x", 0)
		_, _, err := says(t, conn, "x")
		require.ErrorIs(t, err, io.EOF)
		requireSays(t, dial(t, w), "x", 0)
	})
}

// The end of a connection travels behind what was sent before it.
func TestTheEndComesLast(t *testing.T) {
	inBubble(t, memnet.Options{Latency: func() time.Duration { return time.Second }}, func(t *testing.T, w *memnet.Way) {
		w.Hold()
		conn := dial(t, w)
		_, err := io.WriteString(conn, "x")
		require.NoError(t, err)
		require.NoError(t, conn.Close())
		require.Equal(t, 1, w.Conns(), "the server knows nothing of it")
		w.Free()
		<-time.After(3 * time.Second)
		require.Equal(t, 0, w.Conns())
	})
}

func TestAddresses(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var n memnet.Net
		a, b := n.NewAddress(), n.NewAddress()
		require.True(t, a != b, "one address each")
		_, err := n.Dial(a)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		require.Equal(t, "dial tcp "+a+": connect: connection refused", err.Error(), "what a socket says")
		l := n.Listen(a)
		require.Equal(t, a, l.Addr().String())
		conn, err := n.Dial(a)
		require.NoError(t, err)
		server, err := l.Accept()
		require.NoError(t, err)
		_, err = io.WriteString(server, "hello")
		require.NoError(t, err)
		text, _, err := hears(t, conn, time.Now())
		require.NoError(t, err)
		require.Equal(t, "hello", text)
		require.NoError(t, l.Close())
		_, err = l.Accept()
		require.ErrorIs(t, err, net.ErrClosed)
		_, err = n.Dial(a)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
	})
}

// Both ends may write any amount before the other reads. What was written before a Close can still be read.
func TestBuffers(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var server net.Conn
		w := memnet.New(memnet.Options{Serve: func(conn net.Conn) { server = conn }})
		client := dial(t, w)
		much := strings.Repeat("much", 1<<20)
		for _, conn := range []net.Conn{client, server} {
			n, err := io.WriteString(conn, much)
			require.NoError(t, err)
			require.Equal(t, len(much), n)
		}
		got := make([]byte, len(much))
		_, err := io.ReadFull(client, got)
		require.NoError(t, err)
		require.True(t, string(got) == much)
		require.NoError(t, client.Close())
		require.NoError(t, client.Close())
		all, err := io.ReadAll(server)
		require.NoError(t, err)
		require.True(t, string(all) == much)
		_, err = io.WriteString(server, "late")
		require.ErrorIs(t, err, net.ErrClosed)
		require.Equal(t, 0, w.Conns())
	})
}

// A read waits until data, a Close, or its deadline, which may change meanwhile.
func TestDeadlines(t *testing.T) {
	inBubble(t, memnet.Options{}, func(t *testing.T, w *memnet.Way) {
		conn := dial(t, w)
		began := time.Now()
		time.AfterFunc(59*time.Second, func() { _ = conn.SetDeadline(began.Add(time.Hour)) })
		_, after, err := hears(t, conn, began)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Equal(t, time.Hour, after)
		_, err = conn.Read(make([]byte, 1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		time.AfterFunc(time.Second, func() { _ = conn.SetReadDeadline(time.Time{}) })
		time.AfterFunc(2*time.Hour, func() { w.Cut(nil) })
		_, after, err = hears(t, conn, time.Now())
		require.ErrorIs(t, err, io.EOF)
		require.Equal(t, 2*time.Hour, after)
	})
}
