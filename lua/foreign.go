package lua

import (
	"errors"
	"fmt"
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

// failed is the error of a script; fence is its second key, or "".
func failed(script, fence string, err error) error {
	return fmt.Errorf("%s script: %w", script, foreign(fence, err))
}

// foreign turns the server's errors about keys that hold something else into a foreignError.
func foreign(fence string, err error) error {
	var said *rueidis.RedisError
	if !errors.As(err, &said) {
		return err
	}
	if what, ok := strings.CutPrefix(said.Error(), "FOREIGN "); ok { // see acquire.lua
		return &foreignError{said, what}
	}
	if !strings.Contains(said.Error(), "WRONGTYPE") { // before Redis 7 it is not the first word of a script's error
		return err
	}
	if fence == "" {
		return &foreignError{said, "the key holds another type than a hash (WRONGTYPE)"}
	}
	return &foreignError{said, fmt.Sprintf("the key, or its fencing counter %q, holds another type (WRONGTYPE)", fence)}
}
