package faults

import (
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
)

// Histories are texts in testdata: whether a history is valid, and what it shows; below it an operation a line.
//
//	invalid: two live owners
//	  lock a 0..10
//	  lock b 15..20
//
// An operation is its kind; its owner, number or ids; Call..Return; and its other fields, such as "token=1", "unsure" or "killed". A comma stands
// for a space, "slack" for leasedSlack.

// The checkers tell valid histories from invalid ones (G1, G2, G4 to G8). Each invalid history shows a bug that a lock could have.
func TestHistoryCheckerVerdicts(t *testing.T) {
	const told = 100
	verdicts(t, "lock", func(h []histEntry) porcupine.CheckResult { return histCheck(histModel, h) })
	verdicts(t, "readwrite", func(h []histEntry) porcupine.CheckResult { return histCheck(rwModel, h) })
	verdicts(t, "semaphore", func(h []countEntry) porcupine.CheckResult { return countCheck(permModel, h) })
	verdicts(t, "latch", func(h []countEntry) porcupine.CheckResult { return countCheck(latchModel, h) })
	verdicts(t, "permits", func(h []countEntry) porcupine.CheckResult { return countCheck(leasedModel, leasedHistory(h, told)) })
}

func verdicts[E any](t *testing.T, file string, check func([]E) porcupine.CheckResult) {
	t.Helper()
	text, err := os.ReadFile("testdata/" + file + ".txt")
	require.NoError(t, err)
	for history := range strings.SplitSeq(string(text), "\n\n") {
		title, lines, _ := strings.Cut(history, "\n")
		verdict, shows, ok := strings.Cut(title, ": ")
		require.True(t, ok, title)
		t.Run(file+"/"+shows, func(t *testing.T) {
			want := map[string]porcupine.CheckResult{"valid": porcupine.Ok, "invalid": porcupine.Illegal}[verdict]
			require.Equal(t, want, check(operations[E](t, lines)))
		})
	}
}

func operations[E any](t *testing.T, text string) (all []E) {
	t.Helper()
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) != "" {
			all = append(all, operation[E](t, strings.Fields(line)))
		}
	}
	return all
}

func operation[E any](t *testing.T, words []string) (e E) {
	t.Helper()
	set := func(field, text string) {
		v := reflect.ValueOf(&e).Elem().FieldByNameFunc(func(name string) bool { return strings.EqualFold(name, field) })
		require.True(t, v.IsValid(), "%s in %q", field, words)
		switch v.Kind() {
		case reflect.String:
			v.SetString(strings.ReplaceAll(text, ",", " "))
		case reflect.Bool:
			v.SetBool(true)
		default:
			text, more := strings.CutPrefix(text, "slack+")
			n, err := strconv.ParseInt(text, 10, 64)
			require.NoError(t, err, "%q", words)
			if more {
				n += int64(leasedSlack)
			}
			v.SetInt(n)
		}
	}
	_, counts := any(e).(countEntry)
	set("Name", "n")
	if counts {
		set("Kind", strings.ReplaceAll(words[0], "-", " "))
	} else {
		kind := slices.Index(histKinds[:], words[0])
		require.GreaterOrEqual(t, kind, 0, "%q", words)
		set("Kind", strconv.Itoa(kind))
	}
	for i, word := range words[1:] {
		field, value, named := strings.Cut(word, "=")
		from, to, times := strings.Cut(word, "..")
		_, err := strconv.Atoi(word)
		switch {
		case named:
			set(field, value)
		case times:
			set("Call", from)
			if to != "" {
				set("Return", to)
			}
		case i > 0 && counts:
			set("Outcome", word)
		case i > 0:
			set(word, "")
		case !counts:
			set("Owner", word)
		case err == nil:
			set("N", word)
		default:
			set("IDs", word)
			set("N", strconv.Itoa(strings.Count(word, ",")+1))
		}
	}
	return e
}

// An owner is used for one tenure only (I3).
func TestHistoryCheckerSeesOwnersUsedTwice(t *testing.T) {
	reused := func(more string) string {
		return histReused(operations[histEntry](t, `
			lock a 0..10
			re-enter a 11..12
			unlock a 13..14
			unlock a 15..16
			lock b 0..10 name=m
			unlock b 11..12 name=m
			`+more))
	}
	require.Empty(t, reused(""))
	require.Equal(t, "a", reused("lock a 20..30"), "again")
	require.Equal(t, "b", reused("lock b 20..30"), "for another lock")
	require.Equal(t, "b", reused("lock b#2 20..30"), "for another lock, as if passed on")
	passed := func(unlock string) []histEntry {
		return histMerge(histReport{Entries: operations[histEntry](t, "lock a 0..10\n unlock a "+unlock+"\n lock a#2 5..30")})
	}
	require.Empty(t, histReused(passed("20..25")))
	require.Equal(t, "a", histReused(passed("31..36")), "before the unlock was called")
}
