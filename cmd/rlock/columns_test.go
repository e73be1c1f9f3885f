package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWidth(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{"": 0, "job": 3, "注文": 4, "ｶﾅ": 2, "ＡＢ": 4, "한국": 4, "e\u0301": 1, "Ключ…": 5, "🔒x": 3, "\U0002f800": 2} {
		require.Equal(t, want, width(text), text)
	}
	require.Equal(t, "注", cut("注文", 3), "half a character fits nowhere")
	require.Equal(t, "e\u0301", cut("e\u0301x", 1))
	require.Equal(t, "注文", cut("注文", 4))
	for i := 1; i < len(wide); i++ {
		require.Greater(t, wide[i][0], wide[i-1][1], "in order, for the search")
	}
}

// Wide names keep the columns behind them in place.
func TestTableWithWideNames(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	table(&out, []string{"NAME", "KIND"}, [][]string{{"注文処理", "mutex"}, {"order:42", "fair"}, {"cafe\u0301", "read"}}, true)
	require.Equal(t, "NAME      KIND\n注文処理  mutex\norder:42  fair\ncafe\u0301      read\n", out.String())
}

// Nor does a wide name push the columns of top off the screen.
func TestTopScreenWithWideNames(t *testing.T) {
	t.Parallel()
	locks := []wanted{
		{state: state{Name: strings.Repeat("注文処理ロック", 5)}, Waiting: 2}, {state: state{Name: "short"}, Waiting: 1}, {state: state{Name: "cafe:注文処理ロック"}, Waiting: 1},
	}
	for _, across := range []int{40, 53, 54, 80, 160} {
		rows := screenRows(locks, false, across)
		var out bytes.Buffer
		table(&out, screenColumns(topHeader, false), rows, true)
		at := -1 // where the second column begins
		for line := range strings.Lines(out.String()) {
			before := line[:strings.IndexAny(line, "12W")]
			if at < 0 {
				at = width(before)
			}
			require.Equal(t, at, width(before), "%d columns: %s", across, line)
		}
		require.LessOrEqual(t, width(rows[0][0]), max(10, across-44))
	}
}
