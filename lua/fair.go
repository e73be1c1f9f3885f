package lua

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/redis/rueidis"
)

var (
	fairAcquireScript = script{Text("fair_acquire"), "63acb2c813bd6f8eead9751bafe61ec094932631"}
	fairReleaseScript = script{Text("fair_release"), "00a110b21145ab3aeff9e256993efa012e2861e3"}
	fairRefreshScript = script{Text("fair_refresh"), "ed10b20c95da64b1fb5f5230d120360df0e6b894"}
	fairForceScript   = script{Text("fair_force"), "1b7b607b730c6a46fb4db45cb679a494eb7c8a6c"}
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

// Wake makes the first waiter ask if a fair lock is free, and returns when to call it again, 0 if that is not needed: when the first has had its
// time and a waiter of Redisson's is behind it, or when that owner's hold ends, which was lost.
func Wake(ctx context.Context, c rueidis.Client, name, lost string, f Fair, p Publish) (again time.Duration, err error) {
	args := []string{millis(f.Place), p.command(), flag(f.Counts), "-" + lost, p.Name}
	reply, err := numbers(fairRefreshScript.run(ctx, c, []string{name, f.List, f.Times}, args...))
	switch {
	case err != nil:
		return 0, failed("refresh", err, f.List, f.Times)
	case len(reply) != 1:
		return 0, fmt.Errorf("refresh script: %d answers for a look", len(reply))
	}
	return max(0, time.Duration(reply[0])*time.Millisecond), nil
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
