package lua

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

var (
	permitsScript      = script{Text("permits"), "119eea15be2aeb8ec704bb502aa30f3d07f060ab"}
	permitsRenewScript = script{Text("permits_renew"), "5a16f928039ef1807f3baf87f76ee28497524994"}
	permitsLeaseScript = script{Text("permits_lease"), "20de5cdb30a1cf12303bd5b765f354ffc9ec9e9d"}
	permitsInfoScript  = script{Text("permits_info"), "c1d76a92a3124ba63f05fbc4e2138be6692f0401"}
)

// Forever is the lease of a permit that does not expire.
const Forever time.Duration = -1

// PermitID is a permit's id as Redis stores it; Redisson shows it as 32 hex digits.
type PermitID [16]byte

func (p PermitID) String() string { return hex.EncodeToString(p[:]) }

// PermitSemaphore names a semaphore whose permits expire.
type PermitSemaphore struct {
	Semaphore
	Timeouts string // the key of Redisson's permits, a sorted set of ids by expiry time
	Slots    string // the key of the numbers of this library's permits
}

// MaxPermitIDs bounds the permits that one call can take, and those it can give back.
const MaxPermitIDs = 1000

// PermitsArgs is one request of a process, like SemaphoreArgs.
type PermitsArgs struct {
	SemaphoreArgs
	Timeouts string // see PermitSemaphore
	Slots    string

	// Lease is the lease of the permits taken, counted from when the script ran; sent in whole milliseconds; Forever:
	// they do not expire. A repeat of the call does not lengthen it.
	Lease time.Duration
	// Leases are the leases of the permits for each of Wants, if they differ. Lease is unused then.
	Leases []time.Duration
	// IDs are new ids for the permits: for each of Wants in turn, as many as it wants.
	IDs []PermitID
	// Offers means that the process Waits for one permit, for one waiter, and that another process's call may give it: for
	// Keep, with that one of the IDs, by a message of which the owner is that id as text and the token its slot.
	// The next request that wants the id gets it, with its Lease, if it is not over; one that releases it, or is
	// cancelled, also withdraws it.
	Offers bool
	// Release lists ids of permits to give back before any are taken.
	Release []PermitID
}

// Given is the outcome for a permit to give back. The zero value is no answer.
type Given int8

const (
	// PermitUnknown means that no such permit is held. It may have expired and been replaced by another, or the call
	// names it twice.
	PermitUnknown Given = iota + 1
	// PermitReleased means that the permit was given back.
	PermitReleased
	// PermitExpired means that the permit was given back, but had expired before.
	PermitExpired
)

// PermitsReply is Redis's answer. If that granted the only permit wanted, it does not say how many are Free: 0.
type PermitsReply struct {
	SemaphoreReply
	Slots    []int64 // of each permit taken, in the order of the IDs for the granted Wants
	Released []Given // for each of PermitsArgs.Release
	// More means that more permits have expired than one call gives back. If something was refused, Again is 0: ask
	// at once.
	More bool
}

// UsePermits is UseSemaphore for a semaphore whose permits expire. It first gives back up to 500 expired permits.
func UsePermits(ctx context.Context, c rueidis.Client, a PermitsArgs) (PermitsReply, error) {
	if len(a.IDs) > MaxPermitIDs || len(a.Release) > MaxPermitIDs {
		return PermitsReply{}, fmt.Errorf("permits script: more than %d permits", MaxPermitIDs)
	}
	if len(a.Leases) > 0 && len(a.Leases) != len(a.Wants) {
		return PermitsReply{}, fmt.Errorf("permits script: %d leases for %d wants", len(a.Leases), len(a.Wants))
	}
	mode := flag(a.Waits)
	if a.Offers {
		if mode = "3"; !a.Waits || len(a.Wants) != 1 || a.Wants[0] != 1 {
			return PermitsReply{}, errors.New("permits script: only one waiter for one permit can get it by a message")
		}
	}
	alone := a.alone()
	args := append(a.args(make([]string, 0, 5+len(a.IDs)+len(a.Release)), mode, alone), a.leases())
	ids := 0
	for _, n := range a.Wants {
		ids += int(n)
	}
	if ids != len(a.IDs) {
		return PermitsReply{}, fmt.Errorf("permits script: %d ids for %d permits", len(a.IDs), ids)
	}
	for _, id := range a.IDs {
		args = append(args, string(id[:]))
	}
	for _, id := range a.Release {
		args = append(args, string(id[:]))
	}
	reply, err := a.used(permitsScript.run(ctx, c, a.keys(a.Client, a.Timeouts, a.Slots), args...), alone)
	if err != nil {
		return PermitsReply{}, counterFailed("permits", err, a.Requests, a.Timeouts, a.Slots, a.Queue)
	}
	return reply, nil
}

// alone returns 1 for a request that gives back one permit, -1 for one that takes one, and 0 for all others.
func (a *PermitsArgs) alone() int64 {
	wants := a.SemaphoreArgs.alone()
	switch {
	case wants == -1 && len(a.Release) == 0:
		return -1
	case !a.Cancel && a.Change == Add && a.N == 0 && len(a.Wants) == 0 && len(a.Release) == 1:
		return 1
	}
	return 0
}

// used reads a reply, and checks that it fits.
func (a *PermitsArgs) used(r rueidis.RedisResult, alone int64) (PermitsReply, error) {
	reply, err := a.SemaphoreArgs.used(r, alone)
	if err != nil {
		return PermitsReply{}, err
	}
	if alone < 0 && len(reply.Granted) > 0 {
		reply.Free = 0
	}
	taken := int64(0)
	for _, i := range reply.Granted {
		taken += a.Wants[i]
	}
	if int64(len(reply.Slots)) != taken || len(reply.Released) != len(a.Release) {
		return PermitsReply{}, fmt.Errorf("%d slots for %d permits, and %d answers for %d to release", len(reply.Slots), taken, len(reply.Released), len(a.Release))
	}
	return reply, nil
}

func (a *PermitsArgs) leases() string {
	if len(a.Leases) == 0 {
		return leaseText(a.Lease)
	}
	texts := make([]string, len(a.Leases))
	for i, lease := range a.Leases {
		texts[i] = leaseText(lease)
	}
	return strings.Join(texts, " ")
}

func leaseText(lease time.Duration) string {
	if lease < 0 {
		return "-1"
	}
	return millis(lease)
}

// PermitsToRenew are permits of one semaphore.
type PermitsToRenew struct {
	Timeouts string // see PermitSemaphore
	IDs      []PermitID
}

// RenewPermits extends permits of one or more semaphores to lease from now, and answers for each, in order. On a
// cluster all keys must hash to one slot. No permit is shortened. An expired permit is Gone.
func RenewPermits(ctx context.Context, c rueidis.Client, lease time.Duration, all []PermitsToRenew) ([]Renewal, error) {
	keys := make([]string, len(all))
	args := []string{millis(lease)}
	n := 0
	for i, p := range all {
		keys[i] = p.Timeouts
		args = append(args, strconv.Itoa(len(p.IDs)))
		for _, id := range p.IDs {
			args = append(args, string(id[:]))
		}
		n += len(p.IDs)
	}
	return verdicts("permits_renew", permitsRenewScript.run(ctx, c, keys, args...), n)
}

// SetPermitLease makes a permit expire a lease from now, earlier or later than before, or never, and reports whether
// it is held. Waiters look again by that time.
func SetPermitLease(ctx context.Context, c rueidis.Client, s PermitSemaphore, id PermitID, lease time.Duration) (bool, error) {
	keys := append([]string{s.Timeouts}, s.line()...)
	held, err := yes(permitsLeaseScript.run(ctx, c, keys, string(s.how("0")), s.Publish.Name, string(id[:]), leaseText(lease)))
	if err != nil {
		return false, counterFailed("permits_lease", err, s.Requests, s.Timeouts, s.Queue)
	}
	return held, nil
}

// PermitsInfo is the state of a semaphore whose permits expire.
type PermitsInfo struct {
	Exists bool
	Free   int64         // permits, including expired ones
	Held   int64         // permits that have not expired
	Left   time.Duration // of the permit asked for; Forever: it does not expire
	Found  bool          // that permit is held
}

// LookPermits reads the state of a semaphore and, if id is not nil, of that permit. It changes nothing.
func LookPermits(ctx context.Context, c rueidis.Client, s PermitSemaphore, id *PermitID) (PermitsInfo, error) {
	var args []string
	if id != nil {
		args = append(args, string(id[:]))
	}
	n, err := numbers(permitsInfoScript.run(ctx, c, []string{s.Name, s.Timeouts}, args...))
	if err == nil && len(n) != 4 {
		err = errors.New("unknown reply")
	}
	if err != nil {
		return PermitsInfo{}, counterFailed("permits_info", err, s.Timeouts)
	}
	info := PermitsInfo{Exists: n[0] == 1, Free: n[1], Held: n[2], Found: n[3] != -2}
	switch {
	case n[3] == -1:
		info.Left = Forever
	case n[3] > 0:
		info.Left = duration(n[3])
	}
	return info, nil
}

// DeletePermits is [DeleteSemaphore] for a semaphore whose permits expire, and for its permits.
func DeletePermits(ctx context.Context, c rueidis.Client, s PermitSemaphore) (bool, error) {
	return deleteSemaphore(ctx, c, s.Name, s.Timeouts, s.Slots)
}
