package lua

import (
	"context"

	"github.com/redis/rueidis"
)

var forceScript = script{Text("force"), "20843753656df37b1f9adbc43c966e61094a7d99"}

// Force frees the lock whoever holds it, and reports whether it was held.
func Force(ctx context.Context, c rueidis.Client, name string, p Publish) (bool, error) {
	held, err := yes(forceScript.run(ctx, c, []string{name}, p.command(), p.Name))
	if err != nil {
		return false, failed("force", err)
	}
	return held, nil
}
