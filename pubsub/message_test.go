package pubsub

import (
	"math"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-rlock/rlock/internal/testing/require"
)

const longestMillis = math.MaxInt64 / int64(time.Millisecond)

func TestReadMessage(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Message{
		"o 2000 0 7":                     {Granted: true, Owner: "o", Lease: 2 * time.Second, Token: 7},
		"o 1 0 -":                        {Granted: true, Owner: "o", Lease: time.Millisecond, Token: -1},
		"o 1 0 0":                        {Granted: true, Owner: "o", Lease: time.Millisecond},
		"o 9223372036854 0 -":            {Granted: true, Owner: "o", Lease: time.Duration(longestMillis) * time.Millisecond, Token: -1},
		me + ":1 2 0 9007199254740991":   {Granted: true, Owner: me + ":1", Lease: 2 * time.Millisecond, Token: 1<<53 - 1},
		"o 1 0 9223372036854775807":      {Granted: true, Owner: "o", Lease: time.Millisecond, Token: math.MaxInt64},
		"? 0":                            {},
		"? 2000":                         {After: 2 * time.Second},
		"? 9223372036854":                {After: time.Duration(longestMillis) * time.Millisecond},
		"? 0 " + me + ":01":              {Owner: me + ":01"},
		"- 2000 0 -":                     {Granted: true, Owner: "-", Lease: 2 * time.Second, Token: -1},
		"x:y 12 0 1":                     {Granted: true, Owner: "x:y", Lease: 12 * time.Millisecond, Token: 1},
		"\xff\n 12 0 1":                  {Granted: true, Owner: "\xff\n", Lease: 12 * time.Millisecond, Token: 1},
		"?? 12 0 1":                      {Granted: true, Owner: "??", Lease: 12 * time.Millisecond, Token: 1},
		"00000000-0000:\x00 1000000 0 -": {Granted: true, Owner: "00000000-0000:\x00", Lease: 1000 * time.Second, Token: -1},
	} {
		got, known := ReadMessage(text)
		require.True(t, known, "%q", text)
		require.Equal(t, want, got, "%q", text)
		require.Equal(t, text, got.String())
	}
}

// Any text other than a complete message is a hint for the owner at its beginning.
func TestReadUnknownMessage(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", " ", "?", "? ", "?  0", "? 0 ", "? 0 o p", "? 1 o", "? -1", "? +1", "? 01", "? x", "? 9223372036855", "? 9223372036854775808",
		"? 2000 0 7", "o", "o ", "o 2000", "o 2000 0", "o 2000 0 ", "o 2000 0 7 ", " 2000 0 7", "  2000 0 7", "o  2000 0 7", "o\t2000 0 7",
		"o 0 0 7", "o -1 0 7", "o +1 0 7", "o 01 0 7", "o 1e3 0 7", "o 9223372036855 0 7", "o 9223372036854775808 0 7", "o x 0 7",
		"o 2000 0 -1", "o 2000 0 +1", "o 2000 0 07", "o 2000 0 --", "o 2000 0 9223372036854775808", "o 2000 0 x", "o 2000 0 7\n", "o 2000 0 7 8",
		"o 2000 1 7", "o 2000 2 -", "o 2000 -0 7", "o 2000 00 7", "o 2000 -1 7", "o 2000 v1 7", "o 2000 4294967296 7", "o 2000 1 7 more", "o 1",
	} {
		got, known := ReadMessage(text)
		require.False(t, known, "%q", text)
		want, _, _ := strings.Cut(text, " ")
		if want == "?" {
			want = ""
		}
		require.Equal(t, Message{Owner: want}, got, "%q", text)
	}
}

// Grants of another version, or with a count from the first version with grants, are not trusted. The named waiter asks instead, or the
// first waiter if the owner is not in this process.
func TestGrantsOfOtherVersions(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"o1 2000 1 7", "o1 2000 4 -", "o1 2000 4294967296 7", "o1 2000 0 7 more", "o1"} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			another := strings.Replace(text, "o1", "o9", 1)
			d := newManualHub(t)
			ws := d.placed("o1", 2)
			ws = append(ws, &Waiter{Ahead: true})
			d.hub.Join(ws[2], d.q())
			d.turn(ws, 2)
			ws[2].Held(time.Hour, false)
			d.told(text)
			d.turn(ws, 0)
			require.Nil(t, ws[0].Given())
			ws[0].Held(time.Hour, true)
			d.told(another)
			d.turn(ws, 2)

			d = newManualHub(t)
			ws = d.places(3)
			d.told(text)
			d.turn(ws, 1)
			require.Nil(t, ws[1].Given())
			ws[1].Held(time.Hour, true)
			d.told(another)
			d.turn(ws, -1)
		})
	}
}

// Written independently of the code.
var (
	aGrantMessage = regexp.MustCompile(`^([^ ]+) ([1-9][0-9]{0,12}) 0 (-|0|[1-9][0-9]{0,18})$`)
	aHintMessage  = regexp.MustCompile(`^\? (0|[1-9][0-9]{0,12})$|^\? 0 [^ ]+$`)
)

// FuzzMessage: parsing never panics, a parsed message encodes to the same content, and only text in the form of a grant is a grant.
func FuzzMessage(f *testing.F) {
	for _, text := range []string{
		"o 2000 0 7", "o 2000 0 -", "? 0", "? 2000", "? 0 o", "o 2000 1 7", "o 2000 0 7 8", "o 9223372036854 0 9223372036854775807", "o 9223372036855 0 7", "",
	} {
		f.Add(text, "o", int64(2000), int64(7))
	}
	f.Add("? x", "", int64(-1), int64(math.MinInt64))
	f.Add("?", "?", int64(math.MaxInt64), int64(0))
	f.Add(" ", "a b", longestMillis, int64(math.MaxInt64))
	f.Fuzz(func(t *testing.T, text, owner string, ms, token int64) {
		m, known := ReadMessage(text)
		if known && m.String() != text {
			t.Fatalf("%q is read as %+v, which is %q", text, m, m)
		}
		valid := known && aGrantMessage.MatchString(text) && m.Lease > 0 && m.Owner != "" && m.Owner != "?"
		if m.Granted && !valid {
			t.Fatalf("%q is trusted: %+v", text, m)
		}
		if known && !m.Granted && !aHintMessage.MatchString(text) {
			t.Fatalf("%q is no hint: %+v", text, m)
		}
		if !known && (m.Granted || m.After != 0) {
			t.Fatalf("%q is not known: %+v", text, m)
		}

		if owner == "" || owner == "?" || strings.Contains(owner, " ") || ms < 1 || ms > longestMillis {
			return // no script writes such a message
		}
		d := time.Duration(ms) * time.Millisecond
		for _, want := range []Message{{Granted: true, Owner: owner, Lease: d, Token: max(token, -1)}, {Owner: owner}, {After: d}, {}} {
			if got, known := ReadMessage(want.String()); !known || got != want {
				t.Fatalf("%+v is written %q, and read as %+v", want, want, got)
			}
		}
	})
}

// For permits, a number wakes every process; with a leading zero, only processes without a place. A process that gets such a message looks
// at once, without courtesy.
func TestMessagesAboutPermits(t *testing.T) {
	type row struct {
		placed   bool
		personal bool
		message  string
		wakes    bool
	}
	bubbles(t, map[string]row{
		"a number":                             {true, false, "3", true},
		"one":                                  {true, false, "1", true},
		"a number for others":                  {true, false, "03", false},
		"a number for others, without a place": {false, false, "03", true},
		"a number, without a place":            {false, false, "3", true},
		"look":                                 {true, true, "? 0", true},
	}, func(t *testing.T, row row) {
		d := newManualHub(t)
		d.hub.Aside = time.Hour // no courtesy in this test
		q := Queue{Channel: d.ch, Places: true, Counts: true}
		w := &Waiter{Shared: true, Joint: true}
		require.True(t, d.hub.Join(w, q))
		w.Held(time.Hour, false)
		require.Equal(t, subscribing, d.take())
		d.confirm("subscribe")
		<-w.Turn()
		if row.placed {
			require.True(t, w.TakePlace(me))
		}
		w.Held(time.Hour, row.placed)
		synctest.Wait()
		require.Equal(t, !row.placed, d.take() == unsubscribing, "it begins anew only to be counted as out of line")
		require.Empty(t, w.Turn())
		ch := d.ch
		if row.personal {
			ch.Name += d.hub.conns.grants
		}
		d.hub.conns.message(ch, row.message)
		require.Equal(t, row.wakes, len(w.Turn()) == 1)
		w.Leave()
	})
}
