package kinds

import (
	"unicode"
	"unicode/utf8"
)

// MaxLabel bounds a label, in bytes.
const MaxLabel = 100

// LabelKey returns the key of a Client's label, a string that expires.
func LabelKey(id string) string { return "rlock_client:{" + id + "}" }

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
