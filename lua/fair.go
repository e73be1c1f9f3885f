package lua

import (
	"context"
	"slices"
	"time"

	"github.com/redis/rueidis"
)

var (
	fairAcquireScript = script{Text("fair_acquire"), "da39a488e7349647b39dadf2c854ff46c240ff8f"}
	fairReleaseScript = script{Text("fair_release"), "343c083f4ba0076f60797788172da1b295a8d9e9"}
	fairRefreshScript = script{Text("fair_refresh"), "4b2833e0eb28b7aefc925c8690e9c79c852eb5ff"}
	fairForceScript   = script{Text("fair_force"), "6a37cdbeeaae46835545b7989f815548daf07da8"}
)

// Fair is the queue of a fair lock, in Redisson's form: each waiter has a place. The zero value means that the lock
// is not fair.
type Fair struct {
	List  string // key of the owners, in order
	Times string // key of the times at which they give up

	Place      time.Duration // how long a place lasts without a refresh; sent in whole milliseconds
	GrantLease time.Duration // of a grant to the first waiter; 0: it gets a message, and asks; sent in whole milliseconds
	Counts     bool          // the number of receivers of a message shows whether a waiter lives
}

// tail returns the last arguments of each script for a fair lock.
func (f *Fair) tail(p Publish) []string {
	return []string{millis(f.Place), p.command(), p.Name, flag(f.Counts)}
}

// Place is a waiter's place.
type Place struct {
	Name, Owner string
	List, Times string
	Channel     string
}

// Refresh keeps places in the queues of fair locks, and answers for each: Gone is a place that no longer exists. On a
// cluster all names must hash to one slot. It uses only those parts of f and p that all locks share.
func Refresh(ctx context.Context, c rueidis.Client, f Fair, p Publish, places []Place) ([]Renewal, error) {
	keys := make([]string, 0, 3*len(places))
	args := make([]string, 0, 3+2*len(places))
	args = append(args, millis(f.Place), p.command(), flag(f.Counts))
	for _, at := range places {
		keys = append(keys, at.Name, at.List, at.Times)
		args = append(args, at.Owner, at.Channel)
	}
	return verdicts("refresh", fairRefreshScript.run(ctx, c, keys, args...), len(places))
}

// ForceFair is Force for a fair lock: the first waiter gets the lock, or a message.
func ForceFair(ctx context.Context, c rueidis.Client, name string, f Fair, p Publish, owners ...string) (bool, error) {
	args := slices.Concat([]string{millis(f.GrantLease)}, f.tail(p), owners)
	held, err := yes(fairForceScript.run(ctx, c, []string{name, f.List, f.Times}, args...))
	if err != nil {
		return false, failed("force", err, f.List, f.Times)
	}
	return held, nil
}
