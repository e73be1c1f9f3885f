package lua

import (
	"context"
	"slices"
	"time"

	"github.com/redis/rueidis"
)

var (
	fairAcquireScript = script{Text("fair_acquire"), "37800f23f3c1404b3772559013b5bfd46f21b107"}
	fairReleaseScript = script{Text("fair_release"), "594b7b0398c3b6a78b898f2bf5865db93ee5ba5b"}
	fairRefreshScript = script{Text("fair_refresh"), "7dbd94bccecbd67d5cdcd07f6ddf86f390135da0"}
	fairForceScript   = script{Text("fair_force"), "e3735089956668559e33f6ed059e987e3e25154e"}
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
