package lua

import (
	"context"
	"errors"
	"strings"

	"github.com/redis/rueidis"
)

// script is sent by its hash, and as text to a server that does not know it yet.
//
// It does what [rueidis.Lua] does, without the slices that each call of that costs, and on a dedicated connection, too.
// The hash stands here as a constant because a program that allows FIPS 140 algorithms only cannot compute SHA-1.
type script struct{ text, sha string }

// Text is what is sent of a script's source: no comments and no indentation. The first call has to get through slow networks,
// too.
func Text(source string) string {
	var text strings.Builder
	for line := range strings.Lines(source) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "--") {
			text.WriteString(line + "\n")
		}
	}
	return text.String()
}

// doer is a client or a dedicated connection of one.
type doer interface {
	B() rueidis.Builder
	Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult
}

func (s script) run(ctx context.Context, c doer, keys []string, args ...string) rueidis.RedisResult {
	result := c.Do(ctx, s.bySHA(c.B(), keys, args))
	if isUnknown(result) {
		if counting, ok := ctx.(interface{ Answered() }); ok {
			counting.Answered() // rlock counts how often rueidis sends a command by itself
		}
		return c.Do(ctx, s.byText(c.B(), keys, args))
	}
	return result
}

func (s script) bySHA(b rueidis.Builder, keys, args []string) rueidis.Completed {
	return b.Evalsha().Sha1(s.sha).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()
}

func (s script) byText(b rueidis.Builder, keys, args []string) rueidis.Completed {
	return b.Eval().Script(s.text).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()
}

// isUnknown reports whether the server does not know the script that was sent by its hash.
func isUnknown(result rueidis.RedisResult) bool {
	err := result.Error()
	if err == nil {
		return false
	}
	var said *rueidis.RedisError
	return errors.As(err, &said) && said.IsNoScript()
}
