package pubsub

import "strings"

// Spoken is a message from one process to another, on the channel of its ear ([EarChannel]). [ReadSpoken] reads it,
// [Spoken.String] writes it, and this comment is its specification.
//
//	<version> <kind> <payload>
//
// Fields are separated by one space.
//
//	version   0
//	kind      1 to 16 letters a to z: selects the reader of the rest
//	payload   any bytes; the whole message has up to [MaxSpoken]
//
// A publisher can send anything, twice, late, or not at all, so a message is a hint: it may cost a command, and never
// a lock. A process ignores messages that are too long or malformed, or have another version or an unknown kind.
type Spoken struct {
	Kind    string
	Payload string
}

// MaxSpoken bounds the length of a message, in bytes.
const MaxSpoken = 8 << 10

const (
	spokenVersion = "0"
	maxSpokenKind = 16
)

// EarChannel returns the name of the channel for messages to the Client with that id.
func EarChannel(id string) string { return "rlock_client:{" + id + "}" }

// ReadSpoken parses a message. It returns false if the message must be ignored.
func ReadSpoken(text string) (s Spoken, ok bool) {
	if len(text) > MaxSpoken {
		return s, false
	}
	version, rest, ok := strings.Cut(text, " ")
	if !ok || version != spokenVersion {
		return s, false
	}
	kind, payload, ok := strings.Cut(rest, " ")
	if !ok || !isSpokenKind(kind) {
		return s, false
	}
	return Spoken{Kind: kind, Payload: payload}, true
}

func isSpokenKind(kind string) bool {
	if kind == "" || len(kind) > maxSpokenKind {
		return false
	}
	for _, b := range []byte(kind) {
		if b < 'a' || b > 'z' {
			return false
		}
	}
	return true
}

// String returns the text to publish.
func (s Spoken) String() string { return spokenVersion + " " + s.Kind + " " + s.Payload }
