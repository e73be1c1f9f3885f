package kinds

import (
	"strconv"
	"strings"
)

// The tag of an owner may have a mark, which says that its Client can be spoken to (pubsub.EarChannel). To everybody else it is a number as any
// other. A marked one has 20 digits:
//
//	1    beyond what a thread id of Redisson's can be, which is a long
//	n    what the Client wants to hear of, see Mark
//	...  18 digits: the number of the tenure
//
// Older versions give no tag so large.

// Mark is what the tag of an owner says of its Client. The zero value is no mark.
type Mark uint64

const (
	// HasEar says that the Client can be spoken to.
	HasEar Mark = 10_000_000_000_000_000_000
	// WantsAsked says that it wants to know if anybody waits for the lock.
	WantsAsked Mark = HasEar + askedDigit

	askedDigit Mark = 1_000_000_000_000_000_000
	lastDigits Mark = 8 // so that the greatest tag is a number of 64 bits
)

// Marked is that tag with a mark.
func (m Mark) Marked(tag uint64) uint64 { return tag + uint64(m) }

// Unmarked is a tag without its mark: the number of its tenure.
func Unmarked(tag uint64) uint64 {
	if tag < uint64(HasEar) {
		return tag
	}
	return tag % uint64(askedDigit)
}

// MarkOfTag is the mark of a tag; zero if it has none.
func MarkOfTag(tag uint64) Mark {
	if m := Mark(tag - Unmarked(tag)); tag >= uint64(HasEar) && m.digit() < lastDigits {
		return m
	}
	return 0
}

// Wants reports whether a mark says all that another one says.
func (m Mark) Wants(what Mark) bool {
	return m >= HasEar && m.digit()&what.digit() == what.digit()
}

func (m Mark) digit() Mark { return (m - HasEar) / askedDigit }

// MarkOf is the mark of an owner field; zero if it has none. tag is that of its tenure, with the mark, and id its Client.
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
