package kinds

import (
	"unicode"
	"unicode/utf8"
)

// MaxLabel bounds a label, in bytes.
const MaxLabel = 100

// LabelKey returns the key of the label of the Client with that id, a string that expires. It has the first half of the id: an expiring
// permit shows no more of its Client.
func LabelKey(id string) string { return "rlock_client:{" + id[:min(len(id), halfID)] + "}" }

// halfID is the length of the first half of an id with its hyphens.
const halfID = len("01234567-89ab-cdef")

// IsLabel reports whether text can be a label: a short line of printable UTF-8.
func IsLabel(text string) bool {
	if text == "" || len(text) > MaxLabel || !utf8.ValidString(text) {
		return false
	}
	for _, r := range text {
		if !unicode.IsPrint(r) {
			return false
		}
	}
	return true
}
