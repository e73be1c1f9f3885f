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

// foreignError is an ErrForeign, and the server's error that tells of it.
type foreignError struct {
	said *rueidis.RedisError
	what string // the key holds
}

func (e *foreignError) Error() string   { return ErrForeign.Error() + ": " + e.what }
func (e *foreignError) Unwrap() []error { return []error{ErrForeign, e.said} }

// failed is the error of a script; beside are its keys but the lock's, or "".
func failed(script string, err error, beside ...string) error {
	return fmt.Errorf("%s script: %w", script, foreign(err, beside))
}

// foreign turns the server's errors about keys that hold something else into a foreignError.
func foreign(err error, beside []string) error {
	var said *rueidis.RedisError
	if !errors.As(err, &said) {
		return err
	}
	if what, ok := strings.CutPrefix(said.Error(), "FOREIGN "); ok { // see owner_of.lua
		return &foreignError{said, what}
	}
	if !strings.Contains(said.Error(), "WRONGTYPE") { // before Redis 7 it is not the first word of a script's error
		return err
	}
	beside = slices.DeleteFunc(beside, func(key string) bool { return key == "" })
	if len(beside) == 0 {
		return &foreignError{said, "the key holds another type than a hash (WRONGTYPE)"}
	}
	return &foreignError{said, fmt.Sprintf("the key, or one of %q beside it, holds another type (WRONGTYPE)", beside)}
}
