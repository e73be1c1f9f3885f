package main

import (
	"io"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
)

// A length that no Redis answers is an error, not the end of the program with a trace and the code for a wrong usage.
func TestMalformedReplies(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"$-5\r\n", "*-5\r\n", "%-9\r\n", "$99999999999999\r\n", "*99999999999999\r\n", "~x\r\n", "=-2\r\n"} {
		w := start(t, nil, "ls", "-addr", redistest.StartFake(t, redistest.Says(text))) // a process of its own: it may end any time
		got := w.rest()
		require.Equal(t, exitInternal, got.code, "%q: %s", text, got.err)
		require.Regexp(t, `^rlock: 127.0.0.1:[0-9]+: [^\n]*a malformed reply: [^\n]*\n$`, got.err)
	}
}

// However a reply is cut into pieces, its lengths are found, and no others.
func TestCheckedFollowsReplies(t *testing.T) {
	t.Parallel()
	const good = "*3\r\n$4\r\n$-5\n\r\n:12\r\n%1\r\n+*-7\r\n=8\r\ntxt:*-9\n\r\n$-1\r\n*-1\r\n$0\r\n\r\n$?\r\n;3\r\n*-8\r\n;0\r\n-$-9 no\r\n*?\r\n.\r\n_\r\n>0\r\n"
	for size := 1; size < 12; size++ {
		for _, text := range []string{good, good + "$-5\r\n", good + "*-2\r\n"} {
			ours, theirs := net.Pipe()
			go func() { // ends with the text
				for rest := text; rest != ""; {
					n := min(size, len(rest))
					if _, err := theirs.Write([]byte(rest[:n])); err != nil {
						return
					}
					rest = rest[n:]
				}
				_ = theirs.Close()
			}()
			got, err := io.ReadAll(&checked{Conn: ours})
			_ = ours.Close()
			if text == good {
				require.NoError(t, err)
				require.Equal(t, good, string(got))
				continue
			}
			require.ErrorIs(t, err, errMalformed)
			require.True(t, strings.HasPrefix(text, string(got)))
		}
	}
}
