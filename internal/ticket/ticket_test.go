package ticket

import (
	"regexp"
	"strings"
	"testing"

	"github.com/go-rlock/rlock/internal/testing/require"
)

const client = "11111111-2222-3333-4444-55555555abcd"

// A ticket's text parses back for any lock name. Redis sees no part of the secret, and tickets are never equal.
func TestTicket(t *testing.T) {
	seen := make(map[string]bool)
	for _, name := range []string{"order:42", "a.b", "{x}", "\x00\xff\n", strings.Repeat("n", 10000)} {
		for _, kind := range []byte("mfw") {
			made := New(kind, client, name)
			text := made.String()
			require.True(t, regexp.MustCompile(`^[0-9A-Za-z._-]+$`).MatchString(text), "it can stand in a URL")
			got, err := Parse(text)
			require.NoError(t, err)
			require.Equal(t, made, got)
			require.False(t, seen[made.Number()])
			seen[made.Number()] = true
			require.True(t, regexp.MustCompile(`^[0-9]{1,39}$`).MatchString(made.Number()))
			require.False(t, strings.Contains(text, made.Number()))
		}
	}
}

// Another process, even of another version, must find the exporter's data, so text and number must not change.
func TestForm(t *testing.T) {
	made := Ticket{Kind: 'm', Client: client, Name: "order:42", Secret: [16]byte{1, 2, 3}}
	require.Equal(t, "rlock-ticket.1.m."+client+".AQIDAAAAAAAAAAAAAAAAAA.b3JkZXI6NDI", made.String())
	require.Equal(t, "264054349221459357297353867855760074368", made.Number())
}

func TestParseRefuses(t *testing.T) {
	good := Ticket{Kind: 'm', Client: client, Name: "order:42"}.String()
	for name, text := range map[string]string{
		"empty":           "",
		"another text":    "hello",
		"cut":             good[:len(good)-1],
		"longer":          good + ".x",
		"a line break":    good + "\n",
		"in the secret":   strings.Replace(good, ".AAAA", ".AA\nAA", 1),
		"no name":         good[:strings.LastIndex(good, ".")+1],
		"a kind":          strings.Replace(good, ".m.", ".M.", 1),
		"two letters":     strings.Replace(good, ".m.", ".mm.", 1),
		"no UUID":         strings.Replace(good, client, strings.ToUpper(client), 1),
		"a short secret":  strings.Replace(good, ".AAAA", ".", 1),
		"padding":         good + "=",
		"trailing bits":   strings.Replace(good, "AAAAAA.", "AAAAAB.", 1),
		"no version":      strings.Replace(good, ".1.", "..", 1),
		"version 0":       strings.Replace(good, ".1.", ".0.", 1),
		"version 01":      strings.Replace(good, ".1.", ".01.", 1),
		"a long version":  strings.Replace(good, ".1.", ".1234567890.", 1),
		"a space before":  " " + good,
		"another prefix":  strings.Replace(good, "rlock-", "", 1),
		"a version alone": "rlock-ticket.x",
	} {
		_, err := Parse(text)
		require.ErrorIs(t, err, ErrForm, name)
	}
	_, err := Parse(strings.Replace(good, ".1.", ".2.", 1))
	require.ErrorIs(t, err, ErrVersion)
	_, err = Parse("rlock-ticket.17.whatever it has")
	require.ErrorIs(t, err, ErrVersion)
}

// FuzzParse: a parsed ticket encodes to the same text, and errors contain no part of it.
func FuzzParse(f *testing.F) {
	f.Add(Ticket{Kind: 'w', Client: client, Name: "order:42"}.String())
	f.Add("rlock-ticket.2.x")
	f.Add("rlock-ticket.1.m.." + client)
	f.Fuzz(func(t *testing.T, text string) {
		got, err := Parse(text)
		if err != nil {
			if err != ErrForm && err != ErrVersion {
				t.Fatalf("%v", err)
			}
			return
		}
		if got.String() != text {
			t.Fatalf("%q is read as %+v, which is written %q", text, got, got.String())
		}
		if got.Name == "" || !isUUID(got.Client) {
			t.Fatalf("%+v", got)
		}
	})
}
