package lua

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"

	"github.com/redis/rueidis"
)

// script is sent by its hash, and as text to a server that does not know it yet.
//
// It is [rueidis.Lua] without the slices that each call of that costs, and for a dedicated connection, too.
type script struct{ text, sha string }

func newScript(text string) script {
	sum := sha1.Sum([]byte(text))
	return script{text: text, sha: hex.EncodeToString(sum[:])}
}

// doer is a client or a dedicated connection of one.
type doer interface {
	B() rueidis.Builder
	Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult
}

func (s script) run(ctx context.Context, c doer, keys []string, args ...string) rueidis.RedisResult {
	n := int64(len(keys))
	result := c.Do(ctx, c.B().Evalsha().Sha1(s.sha).Numkeys(n).Key(keys...).Arg(args...).Build())
	if err := result.Error(); err != nil {
		var redisErr *rueidis.RedisError
		if errors.As(err, &redisErr) && redisErr.IsNoScript() {
			return c.Do(ctx, c.B().Eval().Script(s.text).Numkeys(n).Key(keys...).Arg(args...).Build())
		}
	}
	return result
}
