package main

import (
	"encoding/xml"
	"io"
	"strings"
	"testing"

	"github.com/go-rlock/rlock/internal/testing/require"
)

// Words keep their columns and colours, bars become rectangles, and the output is valid XML.
func TestDraw(t *testing.T) {
	t.Parallel()
	picture := draw("\x1b[1;31mred & bold\x1b[0m  plain\r\n A  █▁\r\n")
	for _, part := range []string{
		`<text x="16" y="30" textLength="24" lengthAdjust="spacingAndGlyphs" fill="#ff7b72" font-weight="bold">red</text>`,
		`font-weight="bold">&amp;</text>`,
		`<text x="112" y="30" textLength="40" lengthAdjust="spacingAndGlyphs" fill="#e6edf3">plain</text>`,
		`<rect x="48" y="36.0" width="8.2" height="16.0" fill="#e6edf3"/>`,
		`<rect x="56" y="50.0" width="8.2" height="2.0" fill="#e6edf3"/>`,
	} {
		require.Contains(t, picture, part)
	}
	for d := xml.NewDecoder(strings.NewReader(picture)); ; {
		if _, err := d.Token(); err != nil {
			require.ErrorIs(t, err, io.EOF)
			return
		}
	}
}
