package redistest

import "strings"

// Action is how a Proxy treats one frame.
type Action string

const (
	// Pass delivers the frame.
	Pass Action = ""

	// Drop loses the frame and keeps the connection open. A dropped push message loses nothing else. After any other frame the direction
	// stays silent: clients match replies by order, so after a hole they would take the next reply for the lost reply. No network does
	// that.
	Drop Action = "drop"

	// Cut closes both sides of the connection instead of delivering the frame. Earlier frames are still delivered.
	Cut Action = "cut"

	// Hold keeps the frame, and all later frames in this direction of the connection, until Proxy.Release. A held request reaches the
	// server even if the client has gone, like a long-delayed packet.
	Hold Action = "hold"
)

// Fail answers a command with an error line, such as "LOADING Redis is loading the dataset in memory". In a request hook, the server does
// not get the command. In a reply hook, the command runs and its outcome is hidden. Fail ignores push messages, and is not for commands
// inside MULTI.
func Fail(line string) Action { return Action("-" + line) }

// fails returns the error line of an Action made by Fail, or "".
func (a Action) fails() string {
	line, ok := strings.CutPrefix(string(a), "-")
	if !ok {
		return ""
	}
	return line
}

// Hook decides about one frame. Its argument holds the words of the command sent or answered, with the name in upper case, or the words of
// a push message, such as MESSAGE, channel, text.
//
// A proxy calls its hooks one at a time, so they may keep counts. They must not block.
type Hook func(cmd []string) Action

// Nth applies a to the n-th frame of the commands called name, counting from 1, over all connections. The name may include further words to
// match, such as "CLIENT SETINFO" or "EVALSHA 6b1b...".
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

// Each applies a to every frame of the commands called name; see Nth.
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
