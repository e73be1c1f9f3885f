package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/deadlock"
)

// A Client's waits survive encoding, and any reader of the result finds their cycles.
func TestSeenWaits(t *testing.T) {
	const id = "9b1f0c1e-6a57-4c0e-8f7d-2f0d8c3b5a41"
	g := deadlock.New()
	for text, of := range map[string]*deadlock.Graph{"none " + id: g, "off " + id: nil} {
		require.Equal(t, []string{text}, of.Answers(id))
		a, ok := readAnswer(text)
		require.True(t, ok && a.Client == id && a.Off == (of == nil) && a.Wait == nil)
	}
	for i := range 3 {
		s := &deadlock.Seen{
			Client: "c", Number: uint64(i), Lock: fmt.Sprint("lock ", i), Began: time.Unix(int64(i), 0),
			Holds:    []deadlock.SeenHold{{Owner: fmt.Sprint("h", i)}, {Owner: fmt.Sprint("i", i)}},
			Blockers: []string{fmt.Sprint("h", (i+1)%3)},
		}
		if i == 1 {
			s.Lock = strings.Repeat("long", 10000)
		}
		g.Add(waitOf(s))
	}
	g.Add(waitOf(&deadlock.Seen{Client: "another", Number: 3, Lock: "lock 3", Holds: []deadlock.SeenHold{{Owner: "x"}}, Blockers: []string{"h0"}}))
	var seen []deadlock.Seen
	for _, text := range g.Answers("c") {
		a, ok := readAnswer(text)
		require.True(t, ok && a.Client == "c" && !a.Off && a.Of == 3)
		require.Len(t, a.Wait.Holds, 2)
		seen = append(seen, *a.Wait)
	}
	require.Len(t, seen, 3)
	cycles := cyclesOf(seen)
	require.Len(t, cycles, 1)
	require.Len(t, cycles[0], 3)
	require.Equal(t, "lock 2", cycles[0][0].Lock)
	require.Empty(t, cyclesOf(seen[1:]))

	got, ok := deadlock.ReadQuestion(questionOf(id))
	require.True(t, ok && got == id)
	for _, text := range []string{"", "ask", "ask " + id, "is 1 1 {", "is 0 0 ", "is 2 1 {}", "none x"} {
		_, ok := readAnswer(text)
		require.False(t, ok, text)
	}
}
