package lua

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/rueidis"
)

// ErrForeign means that the key of a lock holds something else: a value of another type, or a hash with a field that is no
// owner of a lock. Nothing was changed.
var ErrForeign = errors.New("not a lock")

// ErrNoScripts means that the server does not know EVALSHA or EVAL, or does not let this user call them. A proxy before the
// server may have said so.
var ErrNoScripts = errors.New("the server runs no scripts")

// knownError is one of these sentinels, and the server's error that tells of it.
type knownError struct {
	is   error
	said *rueidis.RedisError
	what string // the key holds, or is not to be had
}

func (e *knownError) Error() string   { return e.is.Error() + ": " + e.what }
func (e *knownError) Unwrap() []error { return []error{e.is, e.said} }

// failed is the error of a script; beside are its keys but the lock's, or "".
func failed(script string, err error, beside ...string) error {
	return fmt.Errorf("%s script: %w", script, known(err, beside))
}

// known turns the server's errors that have a sentinel into a knownError.
func known(err error, beside []string) error {
	var said *rueidis.RedisError
	if !errors.As(err, &said) {
		return err
	}
	if what, ok := strings.CutPrefix(said.Error(), "FOREIGN "); ok { // see owner_of.lua
		return &knownError{ErrForeign, said, what}
	}
	if what, ok := noScripts(said.Error()); ok {
		return &knownError{ErrNoScripts, said, what}
	}
	if !strings.Contains(said.Error(), "WRONGTYPE") { // before Redis 7 it is not the first word of a script's error
		return err
	}
	beside = slices.DeleteFunc(beside, func(key string) bool { return key == "" })
	if len(beside) == 0 {
		return &knownError{ErrForeign, said, "the key holds another type than a hash (WRONGTYPE)"}
	}
	return &knownError{ErrForeign, said, fmt.Sprintf("the key, or one of %q beside it, holds another type (WRONGTYPE)", beside)}
}

// noScripts reports whether text is about EVAL or EVALSHA themselves: unknown command 'EVALSHA', with args beginning with: …
func noScripts(text string) (what string, ok bool) {
	what, _, _ = strings.Cut(text, ", with args")
	lower := strings.ToLower(what)
	return what, (strings.HasPrefix(lower, "unknown command") || strings.HasPrefix(lower, "noperm")) &&
		strings.Contains(strings.ReplaceAll(lower, "`", "'"), "'eval") // imitations of Redis use the other quotes
}
