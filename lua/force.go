package lua

import (
	"context"

	"github.com/redis/rueidis"
)

var forceScript = script{Text("force"), "b20ce6a94f6e14665c024f310c791307b85ae481"}

// Force frees the lock whoever holds it, and reports whether it was held. With owners, it frees a lock only if nobody else holds it.
func Force(ctx context.Context, c rueidis.Client, name string, p Publish, owners ...string) (bool, error) {
	held, err := yes(forceScript.run(ctx, c, []string{name}, append([]string{p.command(), p.Name}, owners...)...))
	if err != nil {
		return false, failed("force", err)
	}
	return held, nil
}
