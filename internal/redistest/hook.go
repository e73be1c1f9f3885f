package redistest

import "strings"

// Action is what a Proxy does with one frame.
type Action string

const (
	// Pass delivers the frame.
	Pass Action = ""

	// Drop loses the frame; the connection stays open. A pushed message is
	// lost alone. For anything else the direction stays silent from there on:
	// replies are told apart by their order, so with a hole in the stream the
	// client would take the next reply for the lost one. No network does that.
	Drop Action = "drop"

	// Cut closes both sides of the connection instead of delivering the frame.
	// Frames that were sent before it are still delivered.
	Cut Action = "cut"

	// Hold keeps the frame, and all behind it in this direction of this
	// connection, until Proxy.Release. A held request reaches the server also
	// if the client has gone by then, as a packet that was long under way does.
	Hold Action = "hold"
)

// Fail answers a command with an error line such as "LOADING Redis is loading
// the dataset in memory". A hook for requests spares the server the command; a
// hook for replies lets it run and hides its outcome. It does nothing to
// pushed messages, and is not for commands inside MULTI.
func Fail(line string) Action { return Action("-" + line) }

// fails returns the error line of an Action made by Fail, "" of any other.
func (a Action) fails() string {
	line, ok := strings.CutPrefix(string(a), "-")
	if !ok {
		return ""
	}
	return line
}

// Hook decides about one frame. It is given the words of the command that is
// sent or answered, the name in upper case; for a pushed message the words of
// the message, such as MESSAGE, channel, text.
//
// A proxy never calls two hooks at once, so that they may count; they must not block.
type Hook func(cmd []string) Action

// Nth does a with the n-th frame of the commands called name, counting from 1,
// over all connections. The name may have further words that must be equal,
// such as "CLIENT SETINFO" or "EVALSHA 6b1b...".
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
