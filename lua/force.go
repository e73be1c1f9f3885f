package lua

import (
	"context"

	"github.com/redis/rueidis"
)

var forceScript = script{Text("force"), "0545f72bfc8b28d82eeee25bacdaf2a38f443992"}

// Force frees the lock whoever holds it, and reports whether it was held.
func Force(ctx context.Context, c rueidis.Client, name string, p Publish) (bool, error) {
	held, err := yes(forceScript.run(ctx, c, []string{name}, p.command(), p.Name))
	if err != nil {
		return false, failed("force", err)
	}
	return held, nil
}
