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
	text := Said(said)
	if what, ok := strings.CutPrefix(text, "FOREIGN "); ok { // see owner_of.lua
		return &knownError{ErrForeign, said, what}
	}
	if what, ok := noScripts(text); ok {
		return &knownError{ErrNoScripts, said, what}
	}
	if !strings.Contains(text, wrongType) {
		return err
	}
	beside = slices.DeleteFunc(beside, func(key string) bool { return key == "" })
	if len(beside) == 0 {
		return &knownError{ErrForeign, said, "the key holds another type than a hash (WRONGTYPE)"}
	}
	return &knownError{ErrForeign, said, fmt.Sprintf("the key, or one of %q beside it, holds another type (WRONGTYPE)", beside)}
}

// wrongType is what the server says of a key with another type; not at the beginning, if an imitation of Redis says so.
const wrongType = "WRONGTYPE"

// noScripts reports whether text, "unknown command 'EVALSHA', with args beginning with: …", is about EVAL or EVALSHA themselves.
func noScripts(text string) (what string, ok bool) {
	what, _, _ = strings.Cut(text, ", with args")
	lower := strings.ToLower(what)
	return what, (strings.HasPrefix(lower, "unknown command") || strings.HasPrefix(lower, "noperm")) &&
		strings.Contains(strings.ReplaceAll(lower, "`", "'"), "'eval") // imitations of Redis use the other quotes
}

// Said returns what the server said, in the words of Redis 7. Redis 6.2 says first in which script and where a command failed, and so
// hides the error's code, as in "Error running script (call to f_…): @user_script:9: @user_script: 9: -READONLY You can't write".
func Said(err *rueidis.RedisError) string {
	const where = "@user_script:"
	text := err.Error()
	if !strings.HasPrefix(text, "Error running script") && !strings.HasPrefix(text, where) {
		return text
	}
	at := strings.LastIndex(text, where)
	if at >= 0 {
		if _, what, found := strings.Cut(text[at+len(where):], ": "); found { // behind the number of the line
			return strings.TrimPrefix(what, "-")
		}
	}
	return text
}
