package redistest

import (
	"strings"
	"testing"

	"github.com/go-rlock/rlock/internal/testing/require"
)

// TestDecoder: frames of all kinds end at the right byte and keep their bytes.
func TestDecoder(t *testing.T) {
	t.Parallel()
	for _, want := range []struct {
		raw   string
		kind  byte
		items []string
	}{
		{"+OK\r\n", '+', nil},
		{"-ERR no\r\n", '-', nil},
		{":12\r\n", ':', nil},
		{"_\r\n", '_', nil},
		{"#t\r\n", '#', nil},
		{",1.5\r\n", ',', nil},
		{"(123\r\n", '(', nil},
		{"$5\r\na\r\nbc\r\n", '$', nil},
		{"$-1\r\n", '$', nil},
		{"=7\r\ntxt:abc\r\n", '=', nil},
		{"!5\r\nERR x\r\n", '!', nil},
		{"*-1\r\n", '*', nil},
		{"*0\r\n", '*', nil},
		{"*3\r\n$1\r\na\r\n:7\r\n*1\r\n+deep\r\n", '*', []string{"a", "7", ""}},
		{"~2\r\n+a\r\n+b\r\n", '~', []string{"a", "b"}},
		{"%2\r\n+a\r\n:1\r\n+b\r\n%1\r\n+c\r\n:2\r\n", '%', []string{"a", "1", "b", ""}},
		{">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\n0\r\n", '>', []string{"message", "c", "0"}},
		{"|1\r\n+ttl\r\n:3\r\n$1\r\nx\r\n", '$', nil},
	} {
		d := newDecoder(strings.NewReader(want.raw + "+next\r\n"))
		f, err := d.frame()
		require.NoError(t, err, want.raw)
		require.Equal(t, want.raw, string(f.raw))
		require.Equal(t, string(want.kind), string(f.kind))
		require.Equal(t, want.items, f.items, want.raw)
		f, err = d.frame()
		require.NoError(t, err)
		require.Equal(t, "+next\r\n", string(f.raw))
		_, err = d.frame()
		require.Error(t, err)
	}
	_, err := newDecoder(strings.NewReader("*x\r\n")).frame()
	require.Error(t, err)
	_, err = newDecoder(strings.NewReader("$9\r\nshort\r\n")).frame()
	require.Error(t, err)
}

func TestCommandWords(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string][]string{
		"*2\r\n$3\r\nget\r\n$1\r\nk\r\n": {"GET", "k"},
		"get k\r\n":                      {"GET", "k"},
		"\r\n":                           {},
	} {
		f, err := newDecoder(strings.NewReader(raw)).frame()
		require.NoError(t, err)
		require.Equal(t, want, f.command())
	}
}

// TestLedger: each frame matches the right command. "push" stands for a message.
func TestLedger(t *testing.T) {
	t.Parallel()
	type step struct{ sent, frame, want string }
	push := func(words ...string) string {
		s := ">" + string(rune('0'+len(words))) + "\r\n"
		for _, w := range words {
			s += "+" + w + "\r\n"
		}
		return s
	}
	for name, steps := range map[string][]step{
		"in order": {
			{sent: "GET a"}, {sent: "GET b"},
			{frame: "+x\r\n", want: "GET a"}, {frame: "-ERR x\r\n", want: "GET b"}, {frame: "+x\r\n", want: "none"},
		},
		"message between replies": {
			{sent: "GET a"},
			{frame: push("message", "c", "0"), want: "push MESSAGE c 0"}, {frame: "+x\r\n", want: "GET a"},
		},
		"one confirmation a channel": {
			{sent: "SUBSCRIBE a b"}, {sent: "GET x"},
			{frame: push("subscribe", "a", "1"), want: "SUBSCRIBE a b"},
			{frame: push("message", "a", "0"), want: "push MESSAGE a 0"},
			{frame: push("subscribe", "b", "2"), want: "SUBSCRIBE a b"},
			{frame: "+x\r\n", want: "GET x"},
		},
		"refused subscription": {
			{sent: "SSUBSCRIBE a"}, {sent: "GET x"},
			{frame: "-MOVED 1 h:1\r\n", want: "SSUBSCRIBE a"}, {frame: "-ERR x\r\n", want: "GET x"},
		},
		"unsubscribe from all, then an error": {
			{sent: "UNSUBSCRIBE"}, {sent: "PING"}, {sent: "SUBSCRIBE c"},
			{frame: push("unsubscribe", "a", "1"), want: "UNSUBSCRIBE"}, {frame: push("unsubscribe", "b", "0"), want: "UNSUBSCRIBE"},
			{frame: "-ERR x\r\n", want: "PING"}, {frame: push("subscribe", "c", "1"), want: "SUBSCRIBE c"},
		},
		"unsubscribe from all, then subscribe": {
			{sent: "UNSUBSCRIBE"}, {sent: "SUBSCRIBE c"},
			{frame: push("unsubscribe", "a", "0"), want: "UNSUBSCRIBE"}, {frame: push("subscribe", "c", "1"), want: "SUBSCRIBE c"},
		},
		"the server's own sunsubscribe": {
			{sent: "SSUBSCRIBE a"}, {frame: push("ssubscribe", "a", "1"), want: "SSUBSCRIBE a"},
			{sent: "GET x"}, {frame: push("sunsubscribe", "a", "0"), want: "push SUNSUBSCRIBE a 0"}, {frame: "+x\r\n", want: "GET x"},
		},
		"RESP2": {
			{sent: "GET x"}, {frame: "*2\r\n+message\r\n+c\r\n", want: "GET x"},
			{sent: "SUBSCRIBE a"}, {sent: "PING"},
			{frame: "*3\r\n+subscribe\r\n+a\r\n:1\r\n", want: "SUBSCRIBE a"},
			{frame: "*3\r\n+message\r\n+a\r\n+0\r\n", want: "push MESSAGE a 0"},
			{frame: "*2\r\n+pong\r\n+\r\n", want: "PING"},
		},
		"an array in RESP3 is no message": {
			{sent: "HELLO 3"}, {frame: "%0\r\n", want: "HELLO 3"},
			{sent: "SUBSCRIBE a"}, {frame: push("subscribe", "a", "1"), want: "SUBSCRIBE a"},
			{sent: "LRANGE l"}, {frame: "*2\r\n+message\r\n+c\r\n", want: "LRANGE l"},
		},
	} {
		var b ledger
		for i, s := range steps {
			if s.sent != "" {
				b.sent(strings.Fields(s.sent), "")
				continue
			}
			f, err := newDecoder(strings.NewReader(s.frame)).frame()
			require.NoError(t, err)
			got := "none"
			if c, reply := b.answered(f); c != nil {
				got = strings.Join(c.cmd, " ")
				if !reply {
					got = "push " + got
				}
			}
			require.Equal(t, s.want, got, "%s, step %d", name, i)
		}
	}
}
