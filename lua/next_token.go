package lua

import (
	"context"

	"github.com/redis/rueidis"
)

var nextTokenScript = script{Text("next_token"), "2fd7c1fb492efcaae59b5d815bf7bf7f32c031df"}

// NextToken gives the holder of a plain lock one more fencing token; 0 if owner does not hold the lock.
func NextToken(ctx context.Context, c rueidis.Client, name, fence, owner string) (token int64, err error) {
	m, err := nextTokenScript.run(ctx, c, []string{name, fence}, owner).ToMessage()
	if err == nil {
		token, err = integer(m)
	}
	if err != nil {
		return 0, failed("next_token", unanswered(err), fence)
	}
	return token, nil
}
