package kinds

import (
	"strconv"
	"strings"
)

// An owner's tag may carry a mark, which describes its Client. Other tags are plain numbers. A marked tag has 20 digits:
//
//	1    makes the number larger than any Redisson thread id (a long)
//	n    the sum of the meanings, see Capability
//	...  18 digits: the number of the tenure

// Capability is the part of a tag that describes its Client. The zero value is no mark.
type Capability uint64

const (
	// WantsAsked means that waiters should notify the Client: it accepts messages (pubsub.EarChannel).
	WantsAsked Capability = marked + digit
	// Lingers means that the owner may have no section open; then it gives the lock up on request. The Client accepts messages.
	Lingers Capability = marked + 2*digit
	// Labelled means that the Client has a label, see LabelKey.
	Labelled Capability = marked + 4*digit

	marked     Capability = 10_000_000_000_000_000_000
	digit      Capability = 1_000_000_000_000_000_000
	lastDigits Capability = 8 // so that the greatest tag is a number of 64 bits
)

// Marked returns the tag with the mark.
func (m Capability) Marked(tag uint64) uint64 { return tag + uint64(m) }

// Unmarked returns a tag without its mark: the number of its tenure.
func Unmarked(tag uint64) uint64 {
	if tag < uint64(marked) {
		return tag
	}
	return tag % uint64(digit)
}

// CapabilityOfTag returns the mark of a tag; zero if it has none.
func CapabilityOfTag(tag uint64) Capability {
	if m := Capability(tag - Unmarked(tag)); tag >= uint64(marked) && m.said() < lastDigits {
		return m
	}
	return 0
}

// With returns a mark that has the meanings of both.
func (m Capability) With(what Capability) Capability {
	switch {
	case m < marked:
		return what
	case what < marked:
		return m
	}
	return marked + (m.said()|what.said())*digit
}

// Wants reports whether m has every meaning of what.
func (m Capability) Wants(what Capability) bool {
	return m >= marked && m.said()&what.said() == what.said()
}

func (m Capability) said() Capability { return (m - marked) / digit }

// CapabilityOf returns the mark of an owner field, its Client's id, and the marked tag of its tenure. All are zero without a mark.
func CapabilityOf(field string) (m Capability, id string, tag uint64) {
	const uuid, markedDigits = 36, 20
	if len(field) < uuid+1+markedDigits || field[uuid] != ':' {
		return 0, "", 0
	}
	text, _, _ := strings.Cut(field[uuid+1:], ":")
	tag, err := strconv.ParseUint(text, 10, 64)
	if m = CapabilityOfTag(tag); err != nil || m == 0 {
		return 0, "", 0
	}
	return m, field[:uuid], tag
}
