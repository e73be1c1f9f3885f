package pubsub

import "strings"

// Spoken is what one process says to another one, on the channel of that one's ear ([EarChannel]). [ReadSpoken] reads it, [Spoken.String] writes
// it, and this comment is its specification.
//
//	<version> <kind> <payload>
//
// Fields are separated by one space.
//
//	version   0
//	kind      1 to 16 letters a to z: who is to read the rest
//	payload   any bytes; the whole has up to [MaxSpoken]
//
// Whoever may publish there can say anything, twice, late, or not at all, so what is said is a hint: it may cost a command, and never a lock. A
// process ignores what has another version, no form that it knows, a kind that it does not know, or is too long.
type Spoken struct {
	Kind    string
	Payload string
}

// MaxSpoken bounds what is said at once, in bytes.
const MaxSpoken = 8 << 10

const (
	spokenVersion = "0"
	maxSpokenKind = 16
)

// EarChannel is the name of the channel on which the Client with that id is spoken to.
func EarChannel(id string) string { return "rlock_client:{" + id + "}" }

// ReadSpoken reads what was said. It reports false if that is to be ignored.
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

// String is what is published.
func (s Spoken) String() string { return spokenVersion + " " + s.Kind + " " + s.Payload }
