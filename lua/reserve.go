package lua

import (
	"context"
	"strconv"

	"github.com/redis/rueidis"
)

var reserveScript = script{Text("reserve"), "b01b9de8c2cc08e23ea0bb1b081e7c1731d7c001"}

// Reserve gives the holder of a plain lock want more fencing tokens, two at least: n tokens from first on. n may be
// 1, and is 0 if owner does not hold the lock.
func Reserve(ctx context.Context, c rueidis.Client, name, fence, owner string, want int64) (first, n int64, err error) {
	m, err := reserveScript.run(ctx, c, []string{name, fence}, owner, strconv.FormatInt(want-1, 10)).ToMessage()
	if err != nil {
		return 0, 0, failed("reserve", unanswered(err), fence)
	}
	reply, err := readReleased(m) // a token and the number of spare ones, or 0
	switch {
	case err != nil:
		return 0, 0, failed("reserve", err, fence)
	case reply.Status != HandedOff:
		return 0, 0, nil
	}
	return reply.Token, reply.Spare + 1, nil
}
