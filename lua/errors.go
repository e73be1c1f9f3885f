package lua

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/rueidis"
)

// ErrForeign means that the lock's key holds something else: a value of another type, or a hash with a field that is
// not an owner of a lock. Nothing was changed.
var ErrForeign = errors.New("not a lock")

// ErrNoScripts means that the server does not know EVALSHA or EVAL, or does not let this user call them. The answer
// may also come from a proxy in front of it.
var ErrNoScripts = errors.New("the server runs no scripts")

// ErrReaders means that readers are in the section of the writer whose lock was to be left to a ticket. Nothing was changed.
var ErrReaders = errors.New("readers are in the section of the writer")

// knownError is one of these sentinels with the server's error behind it.
type knownError struct {
	is   error
	said *rueidis.RedisError
	what string // the content of the key, or the missing command
}

func (e *knownError) Error() string   { return e.is.Error() + ": " + e.what }
func (e *knownError) Unwrap() []error { return []error{e.is, e.said} }

// failed is the error of a script; beside lists its keys other than the lock's, or "".
func failed(script string, err error, beside ...string) error {
	return fmt.Errorf("%s script: %w", script, known(err, beside))
}

// OfKey turns the error of a command on the lock's key alone into one with a sentinel, as those of scripts are.
func OfKey(err error) error { return known(err, nil) }

// known turns server errors that have a sentinel into a knownError.
func known(err error, beside []string) error {
	var said *rueidis.RedisError
	if !errors.As(err, &said) {
		return err
	}
	text := Said(said)
	if what, ok := strings.CutPrefix(text, "FOREIGN "); ok { // see owner_of.lua
		return &knownError{ErrForeign, said, what}
	}
	if strings.HasPrefix(text, "READERS ") { // see export.lua
		return &knownError{ErrReaders, said, "unlock these first"}
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

// wrongType is the server's error for a key of another type. Imitations of Redis do not always put it first.
const wrongType = "WRONGTYPE"

// noScripts reports whether text, "unknown command 'EVALSHA', with args beginning with: …", is about EVAL or EVALSHA.
func noScripts(text string) (what string, ok bool) {
	what, _, _ = strings.Cut(text, ", with args")
	lower := strings.ToLower(what)
	return what, (strings.HasPrefix(lower, "unknown command") || strings.HasPrefix(lower, "noperm")) &&
		strings.Contains(strings.ReplaceAll(lower, "`", "'"), "'eval") // imitations of Redis use the other quotes
}

// Said returns the server's error in the words of Redis 7. Redis 6.2 first names the script and the line, which hides
// the error's code, as in "Error running script (call to f_…): @user_script:9: @user_script: 9: -READONLY You can't
// write".
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

// noQueue reports whether the queue may be the reason that a call was refused: the user may not touch the key or use
// its commands, the key holds something else, memory is short, or the slot is moving. During a move, the other
// cluster node may have the lock and not the queue. Without the queue the lock works as for clients that do not know
// queues.
func noQueue(err error) (without, forbidden bool) {
	var said *rueidis.RedisError
	if !errors.As(err, &said) {
		return false, false
	}
	text := Said(said)
	if strings.HasPrefix(text, "UNTOLD ") { // the script has run
		return false, false
	}
	forbidden = strings.HasPrefix(text, "NOPERM") || // and for a command in a script, before Redis 7.2 and from then on:
		strings.Contains(text, "can't run this command") || strings.Contains(text, "no permissions to run")
	return forbidden || said.IsTryAgain() || strings.HasPrefix(text, "OOM") || strings.Contains(text, wrongType), forbidden
}
