package rlock_test

import (
	"context"
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// G5: if the server has no scripts, or denies them to this user, Lock of any kind fails at once and leaves nothing behind. The
// error is one line with the missing commands and where to look.
func TestServerWithoutScripts(t *testing.T) {
	redistest.Parallel(t)
	const unknownSHA, unknown = "unknown command .EVALSHA.", "unknown command .EVAL." // the quotes differ
	for name, row := range map[string]struct {
		args, rules []string
		says        string
	}{
		"neither":     {[]string{"--rename-command", "EVALSHA", "", "--rename-command", "EVAL", ""}, nil, unknownSHA},
		"no EVALSHA":  {[]string{"--rename-command", "EVALSHA", ""}, nil, unknownSHA},
		"no EVAL":     {[]string{"--rename-command", "EVAL", ""}, nil, unknown},
		"not allowed": {nil, []string{"-evalsha", "-eval"}, `NOPERM .*'evalsha' command.*`},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Parallel(t)
			s := redistest.Start(t, row.args...)
			b := fixture{rdb: s.Client(t)}
			require.NoError(t, b.do(t, append([]string{"ACL", "SETUSER", "shop", "on", ">secret", "~*", "&*", "+@all"}, row.rules...)...).Error())
			client := func() *rlock.Client {
				return newClient(t, s.Client(t, func(o *rueidis.ClientOption) { o.Username, o.Password = "shop", "secret" }))
			}
			c := client()
			rw := c.RWMutex("order:42")
			for kind, lock := range map[string]rlock.Locker{
				"plain": c.Mutex("order:42"), "fenced": c.FencedMutex("order:42"), "fair": c.FairMutex("order:42"),
				"read": rw.Read(), "write": rw.Write(), "All": rlock.All(c.Mutex("order:42"), c.Mutex("order:43")),
				"Quorum": rlock.Quorum(c.Mutex("order:42"), client().Mutex("order:43"), client().Mutex("order:44")),
			} {
				ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
				_, _, err := lock.Lock(ctx)
				cancel()
				require.Regexp(t, `^rlock: "[^\n]*": (fewer than 2 of 3 servers took part: )?[a-z_]+ script: the server runs no scripts: `+
					row.says+`; every lock needs EVALSHA and EVAL: see that the server has them, ACLs allow them, and a proxy before it passes them on$`, err, kind)
				var said *rueidis.RedisError
				require.ErrorAs(t, err, &said, kind)
				require.NotErrorIs(t, err, rlock.ErrUnreachable, kind)
				require.NotErrorIs(t, err, rlock.ErrNotAcquired, kind)
			}
			n, err := b.do(t, "DBSIZE").AsInt64()
			require.NoError(t, err)
			require.Zero(t, n)
		})
	}
}
