package conversations

import (
	"bufio"
	"fmt"
	"io"
	"net"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"
)

// listener is a connection subscribed to a channel.
type listener struct {
	channel string
	conn    net.Conn
}

func (c *conversation) listen(d *datadriven.TestData) string {
	for _, arg := range d.CmdArgs {
		channel := longNames(arg.String())
		c.listeners = append(c.listeners, listener{channel, c.subscribe(channel)})
	}
	return ""
}

func (c *conversation) subscribe(channel string) net.Conn {
	conn, err := net.Dial("tcp", c.addr)
	require.NoError(c.t, err)
	_, err = fmt.Fprintf(conn, "SUBSCRIBE %s\r\n", channel)
	require.NoError(c.t, err)
	line, err := bufio.NewReader(conn).ReadString('\n')
	require.NoError(c.t, err)
	require.Equal(c.t, "*3\r\n", line)
	return conn
}

// listening runs a step while the processes of the owners in it listen.
func (c *conversation) listening(channel string, step directive, d *datadriven.TestData) string {
	if d.HasArg("unseen") {
		return step(c, d)
	}
	clients := make(map[string]bool)
	for _, arg := range d.CmdArgs {
		for _, word := range append(arg.Vals, arg.Key) {
			if shortOwner.MatchString(word) {
				clients[word[:1]] = true
			}
		}
	}
	var conns []net.Conn
	for letter := range clients {
		conns = append(conns, c.subscribe(channel+":"+clientID(letter)))
	}
	reply := step(c, d)
	for _, conn := range conns {
		_, err := io.WriteString(conn, "UNSUBSCRIBE\r\nQUIT\r\n")
		require.NoError(c.t, err)
		_, err = io.Copy(io.Discard, conn)
		require.NoError(c.t, err)
	}
	return reply
}
