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
		v, ok := w.slot(i).enter(7, alone)
		assert.True(t, ok)
		assert.True(t, v.leave())
		v, ok = other.slot(i).enter(8, alone)
		assert.True(t, ok)
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
	first, ok := w.slot(0).enter(1, alone)
	assert.True(t, ok)
	second, ok := other.slot(0).enter(2, alone)
	assert.False(t, ok, "the second one learns it")
	assert.True(t, second.leave())
	assert.True(t, first.leave(), "an overlap is reported once")
	assert.EqualValues(t, 1, w.counted(), "and an update is lost")

	third, ok := w.slot(0).enter(3, alone)
	assert.True(t, ok, "after them it is free again")
	assert.True(t, third.leave())
}

func TestWitnessLetsReadersMeet(t *testing.T) {
	path, w := mapped(t, 1)
	other, err := openWitness(path)
	require.NoError(t, err)
	defer other.close()
	first, may := w.slot(0).enter(1, together)
	assert.True(t, may)
	second, may := other.slot(0).enter(2, together)
	assert.True(t, may)
	assert.True(t, first.leave())
	assert.True(t, second.leave())
	assert.EqualValues(t, 2, w.counted(), "both leave a trace")

	writer, ok := w.slot(0).enter(3, alone)
	assert.True(t, ok, "after them a writer may come in")
	assert.True(t, writer.leave())
	assert.EqualValues(t, 3, other.counted())
}

func TestWitnessSeesReaderAndWriterMeet(t *testing.T) {
	_, w := mapped(t, 1)
	reader, may := w.slot(0).enter(1, together)
	assert.True(t, may)
	writer, ok := w.slot(0).enter(2, alone)
	assert.False(t, ok, "a writer learns of the reader")
	assert.True(t, reader.leave(), "an overlap is reported once")

	late, may := w.slot(0).enter(3, together)
	assert.False(t, may, "and a reader of the writer")
	assert.True(t, writer.leave())
	assert.True(t, late.leave())

	writer, ok = w.slot(0).enter(2, alone)
	assert.True(t, ok, "after them it is free again")
	assert.True(t, writer.leave())
	assert.EqualValues(t, 4, w.counted())
}

func TestWitnessHasRoomForSoMany(t *testing.T) {
	_, w := mapped(t, 1)
	first, may := w.slot(0).enter(1, 2)
	assert.True(t, may)
	second, may := w.slot(0).enter(2, 2)
	assert.True(t, may)
	third, may := w.slot(0).enter(3, 2)
	assert.False(t, may, "there is room for two")
	for _, v := range []visit{first, second, third} {
		assert.True(t, v.leave())
	}
	_, may = w.slot(0).enter(1, 2)
	assert.True(t, may, "after them there is room again")
	assert.EqualValues(t, 3, w.counted())
}

func TestWitnessSlotsAreApart(t *testing.T) {
	_, w := mapped(t, 2)
	a, ok := w.slot(0).enter(1, alone)
	assert.True(t, ok)
	b, ok := w.slot(1).enter(2, alone)
	assert.True(t, ok)
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
