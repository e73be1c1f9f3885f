package kinds

import (
	"strconv"
	"strings"
)

// The tag of an owner may have a mark: its Client accepts messages (pubsub.EarChannel). Otherwise the tag is a number like any other. A marked tag
// has 20 digits:
//
//	1    beyond what a thread id of Redisson's can be, which is a long
//	n    what the Client wants to hear of, see Mark
//	...  18 digits: the number of the tenure
//
// Older versions create no tags that large.

// Mark is the part of a tag that describes its Client. The zero value is no mark.
type Mark uint64

const (
	// HasEar means that the Client accepts messages.
	HasEar Mark = 10_000_000_000_000_000_000
	// WantsAsked means that it wants to know if anybody waits for the lock.
	WantsAsked Mark = HasEar + askedDigit
	// Lingers means that the owner may exist with nobody inside; it gives the lock up if anybody wants it.
	Lingers Mark = HasEar + 2*askedDigit

	askedDigit Mark = 1_000_000_000_000_000_000
	lastDigits Mark = 8 // so that the greatest tag is a number of 64 bits
)

// Marked returns the tag with the mark.
func (m Mark) Marked(tag uint64) uint64 { return tag + uint64(m) }

// Unmarked returns a tag without its mark: the number of its tenure.
func Unmarked(tag uint64) uint64 {
	if tag < uint64(HasEar) {
		return tag
	}
	return tag % uint64(askedDigit)
}

// MarkOfTag returns the mark of a tag; zero if it has none.
func MarkOfTag(tag uint64) Mark {
	if m := Mark(tag - Unmarked(tag)); tag >= uint64(HasEar) && m.digit() < lastDigits {
		return m
	}
	return 0
}

// With returns a mark with the meanings of both.
func (m Mark) With(what Mark) Mark {
	if m < HasEar {
		return what
	}
	return HasEar + (m.digit()|what.digit())*askedDigit
}

// Wants reports whether m has every meaning of what.
func (m Mark) Wants(what Mark) bool {
	return m >= HasEar && m.digit()&what.digit() == what.digit()
}

func (m Mark) digit() Mark { return (m - HasEar) / askedDigit }

// MarkOf returns the mark of an owner field, zero if it has none, the id of its Client, and the tag of its tenure with the mark.
func MarkOf(field string) (m Mark, id string, tag uint64) {
	const uuid, markedDigits = 36, 20
	if len(field) < uuid+1+markedDigits || field[uuid] != ':' {
		return 0, "", 0
	}
	text, _, _ := strings.Cut(field[uuid+1:], ":")
	tag, err := strconv.ParseUint(text, 10, 64)
	if m = MarkOfTag(tag); err != nil || m == 0 {
		return 0, "", 0
	}
	return m, field[:uuid], tag
}
