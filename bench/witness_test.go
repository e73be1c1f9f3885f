package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func mapped(t *testing.T, slots int) (path string, w *witness) {
	t.Helper()
	path, err := createWitness(t.TempDir(), slots)
	require.NoError(t, err)
	w, err = openWitness(path)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, w.close()) })
	return path, w
}

func TestWitnessLetsOneAfterTheOtherPass(t *testing.T) {
	path, w := mapped(t, 3)
	other, err := openWitness(path) // as another process maps it
	require.NoError(t, err)
	for i := range 3 {
		v, alone := w.slot(i).enter(7, false)
		assert.True(t, alone)
		assert.True(t, v.leave())
		v, alone = other.slot(i).enter(8, false)
		assert.True(t, alone)
		assert.True(t, v.leave())
	}
	assert.EqualValues(t, 6, w.counted())
	require.NoError(t, other.close())
	require.Error(t, other.close())
}

func TestWitnessSeesTwoInside(t *testing.T) {
	path, w := mapped(t, 1)
	other, err := openWitness(path)
	require.NoError(t, err)
	defer other.close()
	first, alone := w.slot(0).enter(1, false)
	assert.True(t, alone)
	second, alone := other.slot(0).enter(2, false)
	assert.False(t, alone, "the second one learns it")
	assert.True(t, second.leave())
	assert.True(t, first.leave(), "one overlap is told once")
	assert.EqualValues(t, 1, w.counted(), "and an update is lost")

	third, alone := w.slot(0).enter(3, false)
	assert.True(t, alone, "after them it is free again")
	assert.True(t, third.leave())
}

func TestWitnessLetsReadersMeet(t *testing.T) {
	path, w := mapped(t, 1)
	other, err := openWitness(path)
	require.NoError(t, err)
	defer other.close()
	first, may := w.slot(0).enter(1, true)
	assert.True(t, may)
	second, may := other.slot(0).enter(2, true)
	assert.True(t, may)
	assert.True(t, first.leave())
	assert.True(t, second.leave())
	assert.EqualValues(t, 2, w.counted(), "both leave a trace")

	writer, alone := w.slot(0).enter(3, false)
	assert.True(t, alone, "after them a writer may come in")
	assert.True(t, writer.leave())
	assert.EqualValues(t, 3, other.counted())
}

func TestWitnessSeesReaderAndWriterMeet(t *testing.T) {
	_, w := mapped(t, 1)
	reader, may := w.slot(0).enter(1, true)
	assert.True(t, may)
	writer, alone := w.slot(0).enter(2, false)
	assert.False(t, alone, "a writer learns of the reader")
	assert.True(t, reader.leave(), "one overlap is told once")

	late, may := w.slot(0).enter(3, true)
	assert.False(t, may, "and a reader of the writer")
	assert.True(t, writer.leave())
	assert.True(t, late.leave())

	writer, alone = w.slot(0).enter(2, false)
	assert.True(t, alone, "after them it is free again")
	assert.True(t, writer.leave())
	assert.EqualValues(t, 4, w.counted())
}

func TestWitnessSlotsAreApart(t *testing.T) {
	_, w := mapped(t, 2)
	a, alone := w.slot(0).enter(1, false)
	assert.True(t, alone)
	b, alone := w.slot(1).enter(2, false)
	assert.True(t, alone)
	assert.True(t, a.leave())
	assert.True(t, b.leave())
	assert.EqualValues(t, 2, w.counted())
}

func TestWitnessRefusesOtherFiles(t *testing.T) {
	_, err := openWitness(t.TempDir() + "/none")
	require.Error(t, err)
	path := t.TempDir() + "/short"
	require.NoError(t, os.WriteFile(path, make([]byte, slotSize+1), 0o600))
	_, err = openWitness(path)
	require.ErrorContains(t, err, "65 bytes")
}
