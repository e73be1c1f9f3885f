package conformance

import (
	"slices"
	"testing"

	"github.com/go-rlock/rlock/internal/require"
)

// Each property that a kind is without is one that there is.
func TestExceptions(t *testing.T) {
	for _, k := range kinds() {
		for name := range k.without {
			require.True(t, slices.ContainsFunc(properties, func(p property) bool { return p.name == name }), name)
		}
	}
}
