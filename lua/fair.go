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
	fairRefreshScript = script{Text("fair_refresh"), "6a090ee16cb7a263e2d9d5b114e20f195c81f226"}
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
	keys, args := refreshes(f, p, places, "")
	return verdicts("refresh", fairRefreshScript.run(ctx, c, keys, args...), len(places))
}

// refreshes returns the keys and arguments of the script, with a mark before each owner.
func refreshes(f Fair, p Publish, places []Place, mark string) (keys, args []string) {
	keys = make([]string, 0, 3*len(places))
	args = make([]string, 0, 3+2*len(places))
	args = append(args, millis(f.Place), p.command(), flag(f.Counts))
	for _, at := range places {
		keys = append(keys, at.Name, at.List, at.Times)
		args = append(args, mark+at.Owner, at.Channel)
	}
	return keys, args
}

// Wake makes the first waiter of each of these fair locks ask if the lock is free, and returns for each when to call it again, 0 if that is not
// needed: when the first has had its time and a waiter of Redisson's is behind it, or when the hold of Place.Owner ends, which was lost. It takes
// what Refresh takes, a lock once.
func Wake(ctx context.Context, c rueidis.Client, f Fair, p Publish, looks []Place) (again []time.Duration, err error) {
	keys, args := refreshes(f, p, looks, "-")
	reply, err := numbers(fairRefreshScript.run(ctx, c, keys, args...))
	switch {
	case err != nil:
		return nil, failed("refresh", err, f.List, f.Times)
	case len(reply) != len(looks):
		return nil, fmt.Errorf("refresh script: %d answers for %d looks", len(reply), len(looks))
	}
	again = make([]time.Duration, len(reply))
	for i, ms := range reply {
		again[i] = max(0, time.Duration(ms)*time.Millisecond)
	}
	return again, nil
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
