package calls

import (
	"errors"
	"io"
	"strings"
	"syscall"

	"github.com/redis/rueidis"
)

// Cure says in parentheses, after a space, what may help against an error of a connection that a server took and then refused, or on which
// it does not subscribe; "" if nothing is known.
func Cure(err error) string {
	if err == nil {
		return ""
	}
	said := err.Error()
	var redisErr *rueidis.RedisError
	switch {
	case errors.As(err, &redisErr) && strings.HasPrefix(redisErr.Error(), "NOPROTO"):
		return " (a server or proxy without RESP3: add ?protocol=2 to the URL, or set AlwaysRESP2)"
	case strings.Contains(said, "max number of clients"):
		return " (raise the server's maxclients, or find what opens so many connections)"
	case strings.Contains(said, "unknown command") && strings.Contains(strings.ToLower(said), "subscribe"):
		return " (a Lock that waits needs pub/sub: connect to the server itself, not to a proxy without it)"
	case strings.Contains(said, "DENIED "):
		return " (its protected mode: set a password there, or a bind address)"
	case strings.Contains(said, "unknown message type: 21"): // the first byte of an alert
		return " (what listens there speaks TLS: use rediss://)"
	case strings.Contains(said, "unknown message type"): // rueidis's text
		return " (what listens there is no Redis)"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return " (it hangs up, as do a server at maxclients, one that wants TLS or a client certificate, a proxy without a server, and one that does not know HELLO)"
	}
	return ""
}
