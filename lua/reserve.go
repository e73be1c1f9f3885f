package lua

import (
	"context"
	"strconv"

	"github.com/redis/rueidis"
)

var reserveScript = script{Text("reserve"), "b01b9de8c2cc08e23ea0bb1b081e7c1731d7c001"}

// Reserve has an owner that holds a plain lock have so many more fencing tokens, two at least: from the first one on, n. There may be one only; n is 0 if it
// does not hold the lock.
func Reserve(ctx context.Context, c rueidis.Client, name, fence, owner string, want int64) (first, n int64, err error) {
	m, err := reserveScript.run(ctx, c, []string{name, fence}, owner, strconv.FormatInt(want-1, 10)).ToMessage()
	if err != nil {
		return 0, 0, failed("reserve", unanswered(err), fence)
	}
	reply, err := readReleased(m) // a token and how many are spare, or 0
	switch {
	case err != nil:
		return 0, 0, failed("reserve", err, fence)
	case reply.Status != HandedOff:
		return 0, 0, nil
	}
	return reply.Token, reply.Spare + 1, nil
}
