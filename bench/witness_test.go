package main

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A step is "<visitor> enters <slot> <with>", "<visitor> overlaps <slot> <with>" if it learns that it should not be there, or "<visitor> leaves".
// Visitors with even numbers are another process, which has mapped the same file.
func TestWitness(t *testing.T) {
	for name, row := range map[string]struct {
		steps   string
		counted int // updates: two that overlap lose one
	}{
		"one after the other":   {"1 enters 0 alone; 1 leaves; 2 enters 0 alone; 2 leaves; 1 enters 0 alone; 1 leaves", 3},
		"in each slot":          {"1 enters 1 alone; 1 leaves; 2 enters 1 alone; 2 leaves; 1 enters 2 alone; 1 leaves", 3},
		"slots are apart":       {"1 enters 0 alone; 2 enters 1 alone; 1 leaves; 2 leaves", 2},
		"two inside":            {"1 enters 0 alone; 2 overlaps 0 alone; 2 leaves; 1 leaves; 3 enters 0 alone; 3 leaves", 2},
		"readers meet":          {"1 enters 0 together; 2 enters 0 together; 1 leaves; 2 leaves; 3 enters 0 alone; 3 leaves", 3},
		"reader and writer":     {"1 enters 0 together; 2 overlaps 0 alone; 1 leaves; 3 overlaps 0 together; 2 leaves; 3 leaves; 2 enters 0 alone; 2 leaves", 4},
		"there is room for two": {"1 enters 0 two; 2 enters 0 two; 3 overlaps 0 two; 1 leaves; 2 leaves; 3 leaves; 1 enters 0 two; 1 leaves", 4},
	} {
		t.Run(name, func(t *testing.T) {
			path, err := createWitness(t.TempDir(), 3)
			require.NoError(t, err)
			var processes [2]*witness
			for i := range processes {
				processes[i], err = openWitness(path)
				require.NoError(t, err)
			}
			visits := make(map[string]visit)
			for step := range strings.SplitSeq(row.steps, "; ") {
				words := strings.Fields(step)
				if words[1] == "leaves" {
					require.True(t, visits[words[0]].leave(), "%s: an overlap is reported once", step)
					continue
				}
				number, err := strconv.Atoi(words[0])
				require.NoError(t, err)
				slot, err := strconv.Atoi(words[2])
				require.NoError(t, err)
				room := map[string]int64{"alone": alone, "together": together, "two": 2}[words[3]]
				v, may := processes[(number+1)%2].slot(slot).enter(uint64(number), room)
				require.Equal(t, words[1] == "enters", may, step)
				visits[words[0]] = v
			}
			for _, w := range processes {
				require.EqualValues(t, row.counted, w.counted())
				require.NoError(t, w.close())
				require.Error(t, w.close())
			}
		})
	}
}

func TestWitnessRefusesOtherFiles(t *testing.T) {
	_, err := openWitness(t.TempDir() + "/none")
	require.Error(t, err)
	path := t.TempDir() + "/short"
	require.NoError(t, os.WriteFile(path, make([]byte, slotSize+1), 0o600))
	_, err = openWitness(path)
	require.ErrorContains(t, err, "65 bytes")
}
