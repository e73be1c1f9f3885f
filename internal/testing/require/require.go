// Package require has the parts of testify's package of that name that the library's tests use, without testify.
//
// Importers of a package also get the checksums of its tests' imports. So the tests in rlock, lua, pubsub and lease,
// and their helpers, import nothing that the library does not. Tests in modules of their own use testify.
//
// Each function ends the test, from the test's goroutine, unless its condition holds. The message is a text, or a
// format with its arguments.
//
// They call t.Helper only to fail: it walks the stack, which took most of the time of checks that hold.
package require

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// fail ends the test.
func fail(t testing.TB, message []any, format string, args ...any) {
	t.Helper()
	text := fmt.Sprintf(format, args...)
	if len(message) > 0 {
		said := fmt.Sprint(message[0])
		if len(message) > 1 {
			said = fmt.Sprintf(said, message[1:]...)
		}
		text = said + ": " + text
	}
	t.Fatal(text)
}

// True wants true.
func True(t testing.TB, got bool, message ...any) {
	if !got {
		t.Helper()
		fail(t, message, "got false, want true")
	}
}

// False wants false.
func False(t testing.TB, got bool, message ...any) {
	if got {
		t.Helper()
		fail(t, message, "got true, want false")
	}
}

// Equal wants deeply equal values of the same type.
func Equal(t testing.TB, want, got any, message ...any) {
	if !reflect.DeepEqual(want, got) {
		t.Helper()
		fail(t, message, "got %#v\nwant %#v", got, want)
	}
}

// NotEqual is the opposite of Equal.
func NotEqual(t testing.TB, other, got any, message ...any) {
	if reflect.DeepEqual(other, got) {
		t.Helper()
		fail(t, message, "got %#v, want another value", got)
	}
}

// EqualValues wants equal values, possibly of different types: 1 and int64(1).
func EqualValues(t testing.TB, want, got any, message ...any) {
	if !converted(want, got) || !converted(got, want) {
		t.Helper()
		fail(t, message, "got %#v\nwant %#v", got, want)
	}
}

// converted reports whether a, converted to b's type, equals b.
func converted(a, b any) bool {
	from, to := reflect.ValueOf(a), reflect.ValueOf(b)
	return from.IsValid() && to.IsValid() && from.CanConvert(to.Type()) && reflect.DeepEqual(from.Convert(to.Type()).Interface(), b)
}

// Same wants two pointers to the same variable.
func Same(t testing.TB, want, got any, message ...any) {
	if want != got {
		t.Helper()
		fail(t, message, "got %p (%[1]v), want %p (%[2]v)", got, want)
	}
}

// Nil wants nil, of any type.
func Nil(t testing.TB, got any, message ...any) {
	if !isNil(got) {
		t.Helper()
		fail(t, message, "got %#v, want nil", got)
	}
}

// NotNil is the opposite of Nil.
func NotNil(t testing.TB, got any, message ...any) {
	if isNil(got) {
		t.Helper()
		fail(t, message, "got nil")
	}
}

func isNil(got any) bool {
	v := reflect.ValueOf(got)
	switch v.Kind() {
	case reflect.Invalid:
		return true
	case reflect.Chan, reflect.Func, reflect.Interface, reflect.Map, reflect.Pointer, reflect.Slice:
		return v.IsNil()
	default:
		return false
	}
}

// Zero wants the zero value of its type.
func Zero(t testing.TB, got any, message ...any) {
	v := reflect.ValueOf(got)
	if v.IsValid() && !v.IsZero() {
		t.Helper()
		fail(t, message, "got %#v, want its zero value", got)
	}
}

// Empty wants no elements.
func Empty(t testing.TB, got any, message ...any) {
	if length(t, got) != 0 {
		t.Helper()
		fail(t, message, "got %#v, want nothing", got)
	}
}

// NotEmpty wants elements.
func NotEmpty(t testing.TB, got any, message ...any) {
	if length(t, got) <= 0 {
		t.Helper()
		fail(t, message, "got nothing")
	}
}

// Len wants that number of elements.
func Len(t testing.TB, got any, want int, message ...any) {
	n := length(t, got)
	if n != want {
		t.Helper()
		fail(t, message, "got %d, want %d: %#v", n, want, got)
	}
}

func length(t testing.TB, of any) int {
	v := reflect.ValueOf(of)
	switch v.Kind() {
	case reflect.Invalid: // nil
		return 0
	case reflect.Array, reflect.Chan, reflect.Map, reflect.Slice, reflect.String:
		return v.Len()
	default:
		t.Helper()
		t.Fatalf("%T has no length", of)
		return 0
	}
}

// Contains wants a text containing part, a map with that key, or a list with that element.
func Contains(t testing.TB, got, part any, message ...any) {
	if !contains(t, got, part) {
		t.Helper()
		fail(t, message, "got %#v, want %#v in it", got, part)
	}
}

// NotContains is the opposite of Contains.
func NotContains(t testing.TB, got, part any, message ...any) {
	if contains(t, got, part) {
		t.Helper()
		fail(t, message, "got %#v, want it without %#v", got, part)
	}
}

// Regexp wants a text, or an error's text, that matches form.
func Regexp(t testing.TB, form string, got any, message ...any) {
	text := fmt.Sprint(got)
	if !regexp.MustCompile(form).MatchString(text) {
		t.Helper()
		fail(t, message, "got %q, want it to match %q", text, form)
	}
}

func contains(t testing.TB, whole, part any) bool {
	if text, ok := whole.(string); ok {
		sub, ok := part.(string)
		return ok && strings.Contains(text, sub)
	}
	v := reflect.ValueOf(whole)
	switch v.Kind() {
	case reflect.Map:
		return v.MapIndex(reflect.ValueOf(part)).IsValid()
	case reflect.Array, reflect.Slice:
		for i := range v.Len() {
			if reflect.DeepEqual(v.Index(i).Interface(), part) {
				return true
			}
		}
		return false
	default:
		t.Helper()
		t.Fatalf("%T has no parts", whole)
		return false
	}
}

// Less wants got < limit.
func Less[T cmp.Ordered](t testing.TB, got, limit T, message ...any) {
	if ok := got < limit; !ok { // which NaN is not
		t.Helper()
		fail(t, message, "got %v, want less than %v", got, limit)
	}
}

// LessOrEqual wants got <= limit.
func LessOrEqual[T cmp.Ordered](t testing.TB, got, limit T, message ...any) {
	if ok := got <= limit; !ok { // which NaN is not
		t.Helper()
		fail(t, message, "got %v, want at most %v", got, limit)
	}
}

// Greater wants got > limit.
func Greater[T cmp.Ordered](t testing.TB, got, limit T, message ...any) {
	if ok := got > limit; !ok { // which NaN is not
		t.Helper()
		fail(t, message, "got %v, want more than %v", got, limit)
	}
}

// GreaterOrEqual wants got >= limit.
func GreaterOrEqual[T cmp.Ordered](t testing.TB, got, limit T, message ...any) {
	if ok := got >= limit; !ok { // which NaN is not
		t.Helper()
		fail(t, message, "got %v, want at least %v", got, limit)
	}
}

// Positive wants more than zero.
func Positive[T ~int | ~int64 | ~uint64 | ~float64](t testing.TB, got T, message ...any) {
	if ok := got > 0; !ok { // which NaN is not
		t.Helper()
		fail(t, message, "got %v, want more than 0", got)
	}
}

// NoError wants nil.
func NoError(t testing.TB, err error, message ...any) {
	if err != nil {
		t.Helper()
		fail(t, message, "got the error %v", err)
	}
}

// Error wants an error.
func Error(t testing.TB, err error, message ...any) {
	if err == nil {
		t.Helper()
		fail(t, message, "got no error")
	}
}

// ErrorIs wants errors.Is.
func ErrorIs(t testing.TB, err, target error, message ...any) {
	if !errors.Is(err, target) {
		t.Helper()
		fail(t, message, "got %v, want %v in it", err, target)
	}
}

// NotErrorIs is the opposite of ErrorIs.
func NotErrorIs(t testing.TB, err, target error, message ...any) {
	if errors.Is(err, target) {
		t.Helper()
		fail(t, message, "got %v, want it without %v", err, target)
	}
}

// ErrorAs wants errors.As, and sets target.
func ErrorAs(t testing.TB, err error, target any, message ...any) {
	if !errors.As(err, target) {
		t.Helper()
		fail(t, message, "got %v, want what %T points to in it", err, target)
	}
}

// ErrorContains wants an error whose text contains text.
func ErrorContains(t testing.TB, err error, text string, message ...any) {
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Helper()
		fail(t, message, "got the error %v\nwant %q in it", err, text)
	}
}

// PanicsWithValue wants f to panic with an equal value.
func PanicsWithValue(t testing.TB, want any, f func(), message ...any) {
	var got any
	func() {
		defer func() { got = recover() }()
		f()
	}()
	if !reflect.DeepEqual(want, got) {
		t.Helper()
		fail(t, message, "got the panic %#v\nwant %#v", got, want)
	}
}
