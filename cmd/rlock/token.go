package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/rueidis"
)

const usageToken = `usage: rlock token [flags] NAME

Prints the highest fencing token that the lock NAME has issued, 0 if none.

Stores refuse writes with lower tokens than they have seen. If Redis loses its
counters, for example in a restart without persistence, stores refuse all writes
until the counter has caught up. Then raise it:

  -at-least N  raise the counter to N, at least the highest token that a store
               has seen. The next Lock gets a higher token. The counter is never
               lowered, so this can be repeated, also while the lock is in use
` + usageTarget + `
exit code  0   2 usage   125 Redis failed, or the counter is not a token
`

// mostToken is what a counter can be raised to: the next Lock still gets a token, up to 2^53-1.
const mostToken = 1<<53 - 2

// tokenKey returns the key of a lock's fencing counter. It outlives holds and never expires.
func tokenKey(key string) string { return prefixed("redisson_lock_token", key) }

// raise is atomic: a concurrent Lock counts before or after it. INCR continues from the value that SET wrote.
const raise = `local now = redis.call('get', KEYS[1])
if now and not string.match(now, '^%d+$') then
	return redis.error_reply('the counter is not a token')
end
if not now or tonumber(now) < tonumber(ARGV[1]) then
	redis.call('set', KEYS[1], ARGV[1])
	return ARGV[1]
end
return now`

var errNoToken = errors.New("its counter is not a token")

func (p *program) token(args []string) int {
	var t target
	flags := p.flags("token", &t)
	least := flags.Int64("at-least", 0, "")
	name, code, ok := p.parseName(flags, args)
	if !ok {
		return code
	}
	given := false
	flags.Visit(func(f *flag.Flag) { given = given || f.Name == "at-least" })
	if given && (*least < 1 || *least > mostToken) {
		return p.misuse(fmt.Errorf("-at-least must be from 1 to %d", int64(mostToken)), "token")
	}
	return p.interruptibly(func(ctx context.Context, _ func()) int {
		v, code, ok := p.open(ctx, t)
		if !ok {
			return code
		}
		defer v.close()
		asking, cancel := context.WithTimeout(ctx, answerTime)
		defer cancel()
		var token int64
		var err error
		if given {
			token, err = v.raise(asking, v.prefix+name, *least)
		} else {
			token, err = v.token(asking, v.prefix+name)
		}
		if err != nil {
			return p.failed(ctx, v.at(fmt.Errorf("%q: %w", name, err)))
		}
		fmt.Fprintln(p.out, token)
		return 0
	})
}

// token returns a lock's highest fencing token, 0 if there is none.
func (v *viewer) token(ctx context.Context, key string) (int64, error) {
	text, err := v.rdb.Do(ctx, v.rdb.B().Get().Key(tokenKey(key)).Build()).ToString()
	if rueidis.IsRedisNil(err) {
		return 0, nil
	}
	return asToken(text, err)
}

// raise raises a lock's counter to at least a token, and returns the new value.
func (v *viewer) raise(ctx context.Context, key string, least int64) (int64, error) {
	b := v.rdb.B()
	text, err := v.rdb.Do(ctx, b.Eval().Script(raise).Numkeys(1).Key(tokenKey(key)).Arg(strconv.FormatInt(least, 10)).Build()).ToString()
	return asToken(text, err)
}

func asToken(text string, err error) (int64, error) {
	if err != nil {
		if said, ok := rueidis.IsRedisErr(err); ok && (strings.Contains(said.Error(), "WRONGTYPE") || strings.Contains(said.Error(), "the counter is not a token")) {
			return 0, errNoToken
		}
		return 0, err
	}
	token, err := strconv.ParseInt(text, 10, 64)
	if err != nil || token < 0 {
		return 0, errNoToken
	}
	return token, nil
}
