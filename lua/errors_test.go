package lua_test

import (
	"testing"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/lua"
)

// The errors of Redis 6.2, Redis 8 and Valkey 9 for a command that fails inside a script.
func TestSaid(t *testing.T) {
	t.Parallel()
	rdb := redistest.Dial(t, redistest.Shared(t))
	const call = "Error running script (call to f_dfa094601748940e7a4eb38df28cfad457f6c155): "
	for said, want := range map[string]string{
		call + "@user_script:93: @user_script: 93: -READONLY You can't write": "READONLY You can't write",
		call + "@user_script:1: WRONGTYPE Operation against a key":            "WRONGTYPE Operation against a key",
		"@user_script: 12: -OOM command not allowed":                          "OOM command not allowed",
		"UNTOLD @user_script: 1: -NOPERM no":                                  "UNTOLD @user_script: 1: -NOPERM no",
		`FOREIGN the key holds a hash with the field "@user_script:1: x"`:     `FOREIGN the key holds a hash with the field "@user_script:1: x"`,
		"OOM not allowed script: dfa094, on @user_script:1.":                  "OOM not allowed script: dfa094, on @user_script:1.",
		"OOM not allowed script: on @user_script:1.":                          "OOM not allowed script: on @user_script:1.",
		"Error running script":                                                "Error running script",
		"Error running script: @user_script:":                                 "Error running script: @user_script:",
	} {
		err := rdb.Do(t.Context(), rdb.B().Eval().Script("return redis.error_reply(ARGV[1])").Numkeys(0).Arg(said).Build()).Error()
		var redisErr *rueidis.RedisError
		require.ErrorAs(t, err, &redisErr)
		require.Equal(t, want, lua.Said(redisErr))
	}
}
