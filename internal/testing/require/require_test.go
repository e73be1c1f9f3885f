package require_test

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/go-rlock/rlock/internal/testing/require"
)

// verdict is a test that may fail.
type verdict struct {
	testing.TB
	said string
}

func (v *verdict) Helper() {}

func (v *verdict) Fatal(args ...any) { v.said = fmt.Sprint(args...) }

func (v *verdict) Fatalf(format string, args ...any) { v.said = fmt.Sprintf(format, args...) }

// said returns the message of a failing test; "" if it passes.
func said(try func(t testing.TB)) string {
	v := &verdict{}
	try(v)
	return v.said
}

// Each function passes for its condition, and for nothing else.
func TestVerdicts(t *testing.T) {
	one, other := &verdict{}, &verdict{}
	var none *verdict
	wrapped := fmt.Errorf("wrapped: %w", io.EOF)
	var path *testError
	for name, try := range map[string]struct{ good, bad func(t testing.TB) }{
		"True":  {func(t testing.TB) { require.True(t, true) }, func(t testing.TB) { require.True(t, false) }},
		"False": {func(t testing.TB) { require.False(t, false) }, func(t testing.TB) { require.False(t, true) }},
		"Equal": {
			func(t testing.TB) { require.Equal(t, []int{1}, []int{1}) },
			func(t testing.TB) { require.Equal(t, 1, int64(1)) },
		},
		"NotEqual": {
			func(t testing.TB) { require.NotEqual(t, 1, 2) },
			func(t testing.TB) { require.NotEqual(t, "a", "a") },
		},
		"Regexp": {
			func(t testing.TB) { require.Regexp(t, "^E.F$", io.EOF) },
			func(t testing.TB) { require.Regexp(t, "^O", io.EOF) },
		},
		"EqualValues": {
			func(t testing.TB) { require.EqualValues(t, 1, int64(1)) },
			func(t testing.TB) { require.EqualValues(t, 256, uint8(0)) },
		},
		"EqualValues, a text": {
			func(t testing.TB) { require.EqualValues(t, "a", []byte("a")) },
			func(t testing.TB) { require.EqualValues(t, 97, "a") },
		},
		"Same":   {func(t testing.TB) { require.Same(t, one, one) }, func(t testing.TB) { require.Same(t, one, other) }},
		"Nil":    {func(t testing.TB) { require.Nil(t, none) }, func(t testing.TB) { require.Nil(t, one) }},
		"NotNil": {func(t testing.TB) { require.NotNil(t, one) }, func(t testing.TB) { require.NotNil(t, nil) }},
		"Zero":   {func(t testing.TB) { require.Zero(t, 0) }, func(t testing.TB) { require.Zero(t, 0.1) }},
		"Empty": {
			func(t testing.TB) { require.Empty(t, []int{}) },
			func(t testing.TB) { require.Empty(t, "a") },
		},
		"Empty, without a length": {
			func(t testing.TB) { require.Empty(t, nil) },
			func(t testing.TB) { require.Empty(t, 1) },
		},
		"NotEmpty": {
			func(t testing.TB) { require.NotEmpty(t, map[int]int{1: 1}) },
			func(t testing.TB) { require.NotEmpty(t, "") },
		},
		"Len": {func(t testing.TB) { require.Len(t, "ab", 2) }, func(t testing.TB) { require.Len(t, []int{1}, 2) }},
		"Contains": {
			func(t testing.TB) { require.Contains(t, "abc", "b") },
			func(t testing.TB) { require.Contains(t, []string{"ab"}, "a") },
		},
		"Contains, a key": {
			func(t testing.TB) { require.Contains(t, map[string]int{"a": 1}, "a") },
			func(t testing.TB) { require.Contains(t, map[string]int{"a": 1}, "b") },
		},
		"NotContains": {
			func(t testing.TB) { require.NotContains(t, []int{1}, 2) },
			func(t testing.TB) { require.NotContains(t, "abc", "c") },
		},
		"Less":        {func(t testing.TB) { require.Less(t, 1, 2) }, func(t testing.TB) { require.Less(t, 2, 2) }},
		"LessOrEqual": {func(t testing.TB) { require.LessOrEqual(t, 2, 2) }, func(t testing.TB) { require.LessOrEqual(t, 3, 2) }},
		"Greater":     {func(t testing.TB) { require.Greater(t, 2, 1) }, func(t testing.TB) { require.Greater(t, 2, 2) }},
		"GreaterOrEqual": {
			func(t testing.TB) { require.GreaterOrEqual(t, 2, 2) },
			func(t testing.TB) { require.GreaterOrEqual(t, 1, 2) },
		},
		"Positive": {func(t testing.TB) { require.Positive(t, 1) }, func(t testing.TB) { require.Positive(t, 0) }},
		"NoError":  {func(t testing.TB) { require.NoError(t, nil) }, func(t testing.TB) { require.NoError(t, io.EOF) }},
		"Error":    {func(t testing.TB) { require.Error(t, io.EOF) }, func(t testing.TB) { require.Error(t, nil) }},
		"ErrorIs": {
			func(t testing.TB) { require.ErrorIs(t, wrapped, io.EOF) },
			func(t testing.TB) { require.ErrorIs(t, wrapped, io.ErrUnexpectedEOF) },
		},
		"NotErrorIs": {
			func(t testing.TB) { require.NotErrorIs(t, nil, io.EOF) },
			func(t testing.TB) { require.NotErrorIs(t, wrapped, io.EOF) },
		},
		"ErrorAs": {
			func(t testing.TB) { require.ErrorAs(t, fmt.Errorf("wrapped: %w", &testError{}), &path) },
			func(t testing.TB) { require.ErrorAs(t, wrapped, &path) },
		},
		"ErrorContains": {
			func(t testing.TB) { require.ErrorContains(t, wrapped, "wrap") },
			func(t testing.TB) { require.ErrorContains(t, nil, "") },
		},
		"PanicsWithValue": {
			func(t testing.TB) { require.PanicsWithValue(t, "boom", func() { panic("boom") }) },
			func(t testing.TB) { require.PanicsWithValue(t, "boom", func() {}) },
		},
	} {
		if text := said(try.good); text != "" {
			t.Errorf("%s fails: %s", name, text)
		}
		if said(try.bad) == "" {
			t.Errorf("%s passes although its condition does not hold", name)
		}
	}
}

type testError struct{}

func (*testError) Error() string { return "test" }

func TestMessages(t *testing.T) {
	for want, try := range map[string]func(t testing.TB){
		"got false, want true":           func(t testing.TB) { require.True(t, false) },
		"lock: got false, want true":     func(t testing.TB) { require.True(t, false, "lock") },
		"lock 7: got false, want true":   func(t testing.TB) { require.True(t, false, "lock %d", 7) },
		"100%: got false, want true":     func(t testing.TB) { require.True(t, false, "100%") },
		"got the error boom":             func(t testing.TB) { require.NoError(t, errors.New("boom")) },
		"got 1\nwant 2":                  func(t testing.TB) { require.Equal(t, 2, 1) },
		"seed 3: got 1, want at least 2": func(t testing.TB) { require.GreaterOrEqual(t, 1, 2, "seed %d", 3) },
	} {
		if got := said(try); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
