package main

import (
	"bytes"
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Libraries in one curve have different colours.
func TestColours(t *testing.T) {
	for _, c := range curves(&options{}) {
		used := map[string]string{ink: "the text"}
		for _, name := range c.libs {
			lib, err := findLibrary(name)
			require.NoError(t, err)
			assert.Empty(t, used[lib.colour()], "%s and %s in %s", used[lib.colour()], name, c.name)
			used[lib.colour()] = name
		}
	}
}

// A bar is striped, with the number of starved, hung or failed goroutines, only if there were any.
func TestBarsHideNothing(t *testing.T) {
	w := workload{name: "herd", about: "one lock", metric: perSecond}
	rowOf := func(name string, samples ...*sample) row {
		lib, err := findLibrary(name)
		require.NoError(t, err)
		for _, s := range samples {
			s.cell = cell{Workload: "herd", Processes: 4, Clients: 16, Goroutines: 1}
			s.ElapsedNs = 1e9
		}
		return row{lib: lib, samples: samples}
	}
	draw := func(rows ...row) string {
		path := filepath.Join(t.TempDir(), "herd.svg")
		require.NoError(t, (&table{workload: w, rows: rows}).plot(perSecond, path))
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		return string(text)
	}
	fair := rowOf("rlock", &sample{Ops: 5000}, &sample{Ops: 7000})
	text := draw(fair)
	assert.Contains(t, text, ">6,000<")
	assert.NotContains(t, text, "url(#stripes)")
	assert.Contains(t, text, "more is better")

	text = draw(fair,
		rowOf("bsm", &sample{Ops: 12000, Starved: 13}, &sample{Ops: 13000, Starved: 15}),
		rowOf("redsync", &sample{Ops: 9000, Stuck: 2}, &sample{Ops: 9000, Stuck: 2}),
		rowOf("redisson", &sample{Ops: 44}, &sample{Error: "it hung"}),
		rowOf("rueidislock", &sample{Error: "it hung"}))
	assert.Contains(t, text, ">12,500 (13 to 15 of 64 starve)<")
	assert.Contains(t, text, ">9,000 (2 of 64 stuck)<")
	assert.Contains(t, text, ">44 (1 of 2 rounds failed)<")
	assert.Contains(t, text, ">1 of 1 rounds failed<")
	assert.Equal(t, 3, strings.Count(text, "url(#stripes)"))
	assert.Contains(t, text, "Striped: ")
}

// All plots of the results in docs are valid XML, and no text exceeds their edges, even in a wide font.
func TestPlotsAreWhole(t *testing.T) {
	r, err := readResults("../docs/bench")
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, r.draw(dir))
	plots, err := filepath.Glob(filepath.Join(dir, "*.svg"))
	require.NoError(t, err)
	require.NotEmpty(t, plots)
	for _, path := range plots {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		var width, x float64
		var at anchor
		for d := xml.NewDecoder(bytes.NewReader(text)); ; {
			token, err := d.Token()
			if err != nil {
				require.ErrorIs(t, err, io.EOF, path)
				break
			}
			switch token := token.(type) {
			case xml.StartElement:
				for _, a := range token.Attr {
					v, _ := strconv.ParseFloat(a.Value, 64)
					switch name := token.Name.Local + " " + a.Name.Local; name {
					case "svg width":
						width = v
					case "text x":
						x, at = v, begin
					case "text text-anchor":
						at = anchor(a.Value)
					}
				}
			case xml.CharData:
				text := strings.TrimSpace(string(token))
				left := map[anchor]float64{begin: 0, middle: 0.5, end: 1}[at] * widthOf(text)
				if text != "" {
					assert.GreaterOrEqual(t, x-left, 0.0, "%s: %s", path, text)
					assert.LessOrEqual(t, x-left+widthOf(text), width, "%s: %s", path, text)
				}
			}
		}
	}
}

func TestTicksAndNumbers(t *testing.T) {
	for _, c := range []struct {
		axis axis
		want []float64
	}{
		{axis{from: 0, to: 17961}, []float64{0, 5000, 10000, 15000}},
		{axis{from: 9, to: 17961, log: true}, []float64{10, 100, 1000, 10000}},
		{axis{from: 40, to: 210, log: true}, []float64{50, 100, 200}},
	} {
		assert.Equal(t, c.want, c.axis.ticks())
	}
	for v, want := range map[float64]string{0: "0", 0.697: "0.697", 23.07: "23.1", 999.4: "999", 999.6: "1,000", 12509: "12,509", 1e7: "10,000,000"} {
		assert.Equal(t, want, number(v))
	}
}
