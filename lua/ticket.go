package lua

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

// A ticket is a field that a Release leaves the lock to (ReleaseArgs.Ticket), and from which an Acquire takes it
// (AcquireArgs.Ticket). Both are for a Whole lock and for a Writer.
var (
	exportScript = script{Text("export"), "c7f813115ad23930066be2cfc56f80018a75ef9e"}
	adoptScript  = script{Text("adopt"), "a1f2319f881fbbf1201a36a97cf03ac1cce0f8c7"}
)

// adopt sends the acquire of a ticket's lock.
func (a AcquireArgs) adopt(ctx context.Context, c doer) rueidis.RedisResult {
	var keys [3]string
	return adoptScript.run(ctx, c, keysOf(&keys, a.Name, a.Fence, ""), a.Owner, millis(a.Lease), a.Ticket, a.Publish.command(), a.Publish.Name)
}

// export returns the script to send for a release to a ticket, with its keys and arguments.
func (a *ReleaseArgs) export() (s script, keys, args []string) {
	return exportScript, []string{a.Name}, []string{a.Owner, a.Ticket, a.leftTaken(), a.Publish.command(), a.Publish.Name}
}

// script is the script's name in errors.
func (a *ReleaseArgs) script() string {
	if a.Ticket != "" {
		return "export"
	}
	return "release"
}

// leftTaken returns how long the lock stays taken from now on, also in a repeat, in whole milliseconds rounded up.
func (a *ReleaseArgs) leftTaken() string {
	left := time.Until(a.Taken)
	ms := left.Milliseconds()
	if left%time.Millisecond > 0 { // nothing is added to left: it may be the longest there is
		ms++
	}
	return strconv.FormatInt(max(ms, 1), 10)
}
