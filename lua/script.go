package lua

import (
	"context"
	"embed"
	"errors"
	"slices"
	"strings"

	"github.com/redis/rueidis"
)

// script is sent by its hash, and as text to a server that does not know it yet.
//
// It works like [rueidis.Lua], but without its slices for each call, and on a dedicated connection, too. The hash is
// a constant because a program restricted to FIPS 140 algorithms cannot compute SHA-1.
type script struct{ text, sha string }

//go:embed *.lua
var sources embed.FS

// preludes lists the files with functions to put in front of each script: a script cannot call another.
var preludes = map[string][]string{
	"force":                {"owner_of", "only"},
	"info":                 {"owner_of"},
	"fair_acquire":         {"owner_of", "message", "seen", "fair"},
	"fair_release":         {"message", "seen", "fair"},
	"fair_refresh":         {"message", "seen", "fair"},
	"fair_force":           {"owner_of", "only", "message", "seen", "fair"},
	"read_acquire":         {"owner_of", "hold_key", "lives", "seen"},
	"read_release":         {"hold_key", "lives"},
	"read_renew":           {"hold_key"},
	"write_acquire":        {"owner_of", "hold_key", "lives", "readers", "seen"},
	"fenced_write_acquire": {"owner_of", "raise", "hold_key", "lives", "readers", "seen"},
	"write_release":        {"hold_key", "lives", "readers", "seen"},
	"rw_force":             {"owner_of", "only", "hold_key"},
	"export":               {"hold_key", "lives", "readers"},
	"adopt":                {"raise"},
	"next_token":           {"raise"},
	"permits_renew":        {"clock"},
	"permits_lease":        {"clock", "message", "record", "line", "announce"},
	"permits_info":         {"clock", "counter"},
	"semaphore_delete":     {"counter"},

	"latch_set":        {"latch"},
	"latch_count_down": {"latch"},
	"latch_delete":     {"latch"},
	"latch_look":       {"latch"},
}

// include begins a line that stands for preludes which only the rest of the script needs.
const include = "-- include "

// fenced begins the names of scripts with a fencing token, and the script lines that only these have: calls without
// tokens do not pay for them.
const fenced = "fenced"

// Text returns the script of that file as it is sent: with its preludes, without comments and indentation. The first
// call must get through slow networks, too.
func Text(name string) string {
	var text strings.Builder
	base, tokens := strings.CutPrefix(name, fenced+"_")
	for _, file := range slices.Concat(preludes[name], []string{base}) {
		source, err := sources.ReadFile(file + ".lua")
		if err != nil {
			panic(err) // there is no such script
		}
		for line := range strings.Lines(string(source)) {
			line = strings.TrimSpace(line)
			if code, ok := strings.CutPrefix(line, "-- "+fenced+" "); ok && tokens {
				line = strings.TrimSpace(code)
			}
			if files, ok := strings.CutPrefix(line, include); ok {
				for prelude := range strings.FieldsSeq(files) {
					text.WriteString(Text(prelude))
				}
			} else if line != "" && !strings.HasPrefix(line, "--") {
				text.WriteString(line + "\n")
			}
		}
	}
	return text.String()
}

// doer is a client or one of its dedicated connections.
type doer interface {
	B() rueidis.Builder
	Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult
}

func (s script) run(ctx context.Context, c doer, keys []string, args ...string) rueidis.RedisResult {
	result := c.Do(ctx, s.bySHA(c.B(), keys, args))
	if isUnknown(result) {
		answered(ctx)
		return c.Do(ctx, s.byText(c.B(), keys, args))
	}
	return result
}

// answered says that the next command under ctx is another one: rlock counts how often rueidis sends a command by itself.
func answered(ctx context.Context) {
	if counting, ok := ctx.(interface{ Answered() }); ok {
		counting.Answered()
	}
}

func (s script) bySHA(b rueidis.Builder, keys, args []string) rueidis.Completed {
	return b.Evalsha().Sha1(s.sha).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()
}

func (s script) byText(b rueidis.Builder, keys, args []string) rueidis.Completed {
	return b.Eval().Script(s.text).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()
}

// isUnknown reports whether the server does not know a script sent by its hash.
func isUnknown(result rueidis.RedisResult) bool {
	err := result.Error()
	if err == nil {
		return false
	}
	var said *rueidis.RedisError
	return errors.As(err, &said) && said.IsNoScript()
}
