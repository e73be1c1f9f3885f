package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestOverview(t *testing.T) {
	t.Parallel()
	// 72 columns of 100 ms: A has one and a half, B is killed in its third, and C takes over in the sixth.
	r := history(stay{"A", tea, 1, 0, 1, 150}, stay{"B", tea, 1, 0, 200, 0}, stay{"C", tea, 1, 0, 550, 600})
	r.died("B", r.at(450))
	require.Equal(t, "    0 s       1 s       2 s       3 s       4 s       5 s       6 s", ruler(100*ms))
	// A machine that stands still stretches the demo.
	require.Equal(t, "    0 s 2 s 4 s 6 s 8 s 10 s  13 s", ruler(500 * ms)[:34])
	require.Equal(t, "    0 s 8 s 16 s", ruler(2 * time.Second)[:16])
	require.Equal(t, []string{
		" A  █▄",
		" B    ██×·",
		" C       ▄",
	}, r.overview([]string{"A", "B", "C"}, 100*ms))

	r = history(stay{"B", tea, 1, 0, 0, 0}, stay{"C", tea, 1, 0, 650, 700})
	r.died("B", r.at(250))
	require.Equal(t, []string{" B  ██×····", " C        ▄"}, r.overview([]string{"B", "C"}, 100*ms))
}

func TestOverviewOfCheats(t *testing.T) {
	t.Parallel()
	r := history(stay{"A", tea, 1, 0, 0, 100}, stay{"A", tea, 1, 0, 0, 100})
	require.Equal(t, []string{" A  █"}, r.overview([]string{"A"}, 100*ms))
}

func TestCloseUp(t *testing.T) {
	t.Parallel()
	r := history(stay{"A", tea, 1, 0, 10, 20}, stay{"A", tea, 2, 0, 12, 15}, stay{"B", tea, 1, 0, 21, 25})
	require.Equal(t, []string{" A  1122211111", " B             1111"}, r.closeUp([]string{"A", "B"}, r.at(10), ms))
}

func TestLiveliest(t *testing.T) {
	t.Parallel()
	r := history(
		stay{"A", tea, 1, 0, 0, 10}, stay{"A", tea, 1, 0, 11, 20},
		stay{"B", tea, 1, 0, 100, 110}, stay{"C", tea, 1, 0, 111, 120}, stay{"A", tea, 1, 0, 121, 130},
		stay{"D", tea, 1, 0, 500, 510},
	)
	require.Equal(t, r.at(100), r.liveliest(50*ms, r.at(1000)))
	require.Equal(t, r.start, r.liveliest(50*ms, r.at(90)))
}

func TestScreen(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	require.Equal(t, "x", screen{Writer: &b}.bad("x"))
	require.Equal(t, "\x1b[1;31mx\x1b[0m", screen{Writer: &b, colour: true}.bad("x"))
	require.Equal(t, "abc", clip("abc", 3))
	require.Equal(t, "ab…", clip("abcd", 3))
	require.Equal(t, 1230*time.Microsecond, round(1234567))
}
