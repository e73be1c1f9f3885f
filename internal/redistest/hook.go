package redistest

import "strings"

// Action is how a Proxy treats one frame.
type Action string

const (
	// Pass delivers the frame.
	Pass Action = ""

	// Drop loses the frame; the connection stays open. A pushed message is lost alone. After any other frame the
	// direction stays silent: replies are told apart by their order, so with a hole in the stream the client would
	// take the next reply for the lost one. No network does that.
	Drop Action = "drop"

	// Cut closes both sides of the connection instead of delivering the frame. Frames sent before it are still
	// delivered.
	Cut Action = "cut"

	// Hold keeps the frame, and all behind it in this direction of this connection, until Proxy.Release. A held
	// request reaches the server even if the client has gone by then, like a long-delayed packet.
	Hold Action = "hold"
)

// Fail answers a command with an error line such as "LOADING Redis is loading the dataset in memory". In a hook for
// requests, the server does not get the command; in a hook for replies, it runs and its outcome is hidden. Fail does
// nothing to pushed messages, and is not for commands inside MULTI.
func Fail(line string) Action { return Action("-" + line) }

// fails returns the error line of an Action made by Fail, "" for any other.
func (a Action) fails() string {
	line, ok := strings.CutPrefix(string(a), "-")
	if !ok {
		return ""
	}
	return line
}

// Hook decides about one frame. Its argument is the words of the command that is sent or answered, the name in upper
// case; for a pushed message the words of the message, such as MESSAGE, channel, text.
//
// A proxy never calls two hooks at once, so they may keep counts; they must not block.
type Hook func(cmd []string) Action

// Nth does a with the n-th frame of the commands called name, counting from 1, over all connections. The name may
// have further words, which must be equal, such as "CLIENT SETINFO" or "EVALSHA 6b1b...".
func Nth(n int, name string, a Action) Hook {
	seen := 0
	return func(cmd []string) Action {
		if !called(cmd, name) {
			return Pass
		}
		if seen++; seen != n {
			return Pass
		}
		return a
	}
}

// Each does a with every frame of the commands called name; see Nth.
func Each(name string, a Action) Hook {
	return func(cmd []string) Action {
		if !called(cmd, name) {
			return Pass
		}
		return a
	}
}

// called reports whether cmd begins with the words of name.
func called(cmd []string, name string) bool {
	words := strings.Fields(name)
	if len(cmd) < len(words) {
		return false
	}
	for i, w := range words {
		if !strings.EqualFold(cmd[i], w) {
			return false
		}
	}
	return true
}
