package lua

import (
	"context"
	_ "embed" // for the script texts below
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

var (
	//go:embed acquire.lua
	acquireText string
	//go:embed release.lua
	releaseText string
	//go:embed handoff.lua
	handOffText string
	//go:embed renew.lua
	renewText string
	//go:embed force.lua
	forceText string

	acquireScript = rueidis.NewLuaScript(acquireText)
	releaseScript = rueidis.NewLuaScript(releaseText)
	handOffScript = rueidis.NewLuaScript(handOffText)
	renewScript   = rueidis.NewLuaScript(renewText)
	forceScript   = rueidis.NewLuaScript(forceText)
)

// Publish says where an unlock is announced.
type Publish struct {
	Channel string
	Sharded bool // SPUBLISH instead of PUBLISH: the channel then has to hash to the slot of the lock
}

func (p Publish) command() string {
	if p.Sharded {
		return "spublish"
	}
	return "publish"
}

// Status is the answer to an acquire. The zero value is no answer, so that it can not be taken for
// a success.
type Status int8

const (
	// Acquired means that the owner holds the lock, as deep as it asked for.
	Acquired Status = iota + 1
	// Held means that another owner holds it.
	Held
	// Lost means that the hold which the owner wanted to re-enter is gone.
	Lost
)

// AcquireArgs says who wants which lock.
type AcquireArgs struct {
	Name  string
	Fence string // key of the fencing counter, "" for a lock without one
	Owner string
	Lease time.Duration // sent in whole milliseconds
	Count int           // the owner's count after this call, 1 for a first acquire

	Replicas    int           // wait for so many replicas to have it; 0: for none
	ReplicaWait time.Duration // at most so long; sent in whole milliseconds
}

// AcquireReply is what Redis said.
type AcquireReply struct {
	Status Status
	Token  int64         // fencing token, if Acquired and AcquireArgs.Fence was given
	TTL    time.Duration // remaining time of the other's hold, if Held; negative: it has no expiry

	// Unconfirmed says why it is not known that enough replicas have what was Acquired.
	Unconfirmed error
}

// Acquire takes the lock or re-enters it. If it was sent before and the reply was lost, sending it
// again with the same arguments does not count twice.
func Acquire(ctx context.Context, c rueidis.Client, a AcquireArgs) (AcquireReply, error) {
	keys := []string{a.Name, a.Fence}
	if a.Fence == "" {
		keys = keys[:1]
	}
	args := []string{a.Owner, millis(a.Lease), strconv.Itoa(a.Count)}
	var result rueidis.RedisResult
	var unconfirmed error
	if a.Replicas > 0 {
		result, unconfirmed = acquireAndWait(ctx, c, keys, args, a)
	} else {
		result = acquireScript.Exec(ctx, c, keys, args)
	}
	reply, err := pair(result)
	if err != nil {
		return AcquireReply{}, fmt.Errorf("acquire script: %w", err)
	}
	switch reply[0] {
	case 1:
		return AcquireReply{Status: Acquired, Token: reply[1], Unconfirmed: unconfirmed}, nil
	case 0:
		return AcquireReply{Status: Held, TTL: duration(reply[1])}, nil
	case -1:
		return AcquireReply{Status: Lost}, nil
	}
	return AcquireReply{}, fmt.Errorf("acquire script: unknown reply %v", reply)
}

// ReleaseArgs says who gives which lock back.
type ReleaseArgs struct {
	Name    string
	Owner   string
	Count   int           // the owner's count after this call, 0 to end the hold
	Lease   time.Duration // refreshes the expiry if Count is above 0; sent in whole milliseconds
	Publish Publish       // used if Count is 0
}

// Release lowers the owner's count. It reports false if the owner does not hold the lock, which is
// also the answer to a repeat of a release that ended the hold.
func Release(ctx context.Context, c rueidis.Client, a ReleaseArgs) (bool, error) {
	reply, err := pair(releaseScript.Exec(ctx, c, []string{a.Name},
		[]string{a.Owner, strconv.Itoa(a.Count), millis(a.Lease), a.Publish.command(), a.Publish.Channel}))
	if err != nil {
		return false, fmt.Errorf("release script: %w", err)
	}
	switch reply[0] {
	case 1:
		return true, nil
	case 0:
		return false, nil
	}
	return false, fmt.Errorf("release script: unknown reply %v", reply)
}

// HandOffArgs say who gives which lock to whom.
type HandOffArgs struct {
	Name  string
	Fence string        // key of the fencing counter, "" if the next owner wants no token
	Owner string        // who has it, for the last level
	Next  string        // who gets it, with a count of 1
	Lease time.Duration // of the next owner; sent in whole milliseconds
}

// HandOff moves the lock from one owner to the next without freeing it. Lost means that the first of
// them does not hold it; then nothing was changed. So that is also the answer to a repeat.
func HandOff(ctx context.Context, c rueidis.Client, a HandOffArgs) (AcquireReply, error) {
	keys := []string{a.Name, a.Fence}
	if a.Fence == "" {
		keys = keys[:1]
	}
	reply, err := pair(handOffScript.Exec(ctx, c, keys, []string{a.Owner, a.Next, millis(a.Lease)}))
	if err != nil {
		return AcquireReply{}, fmt.Errorf("hand-off script: %w", err)
	}
	switch reply[0] {
	case 1:
		return AcquireReply{Status: Acquired, Token: reply[1]}, nil
	case 0:
		return AcquireReply{Status: Lost}, nil
	}
	return AcquireReply{}, fmt.Errorf("hand-off script: unknown reply %v", reply)
}

// Hold names an owner's hold on a lock.
type Hold struct{ Name, Owner string }

// Renewal is the answer for one hold. The zero value is no answer.
type Renewal int8

const (
	// Renewed means that the expiry is now at least the lease away.
	Renewed Renewal = iota + 1
	// Gone means that the owner does not hold the lock.
	Gone
	// Refused means that Redis could not look at this key now, say because it may not be read.
	Refused
)

// Renew extends the expiry of all holds to lease from now and answers for each. On a cluster all
// names have to hash to one slot.
func Renew(ctx context.Context, c rueidis.Client, lease time.Duration, holds []Hold) ([]Renewal, error) {
	keys := make([]string, len(holds))
	args := make([]string, len(holds)+1)
	args[0] = millis(lease)
	for i, h := range holds {
		keys[i], args[i+1] = h.Name, h.Owner
	}
	reply, err := numbers(renewScript.Exec(ctx, c, keys, args))
	if err != nil {
		return nil, fmt.Errorf("renew script: %w", err)
	}
	if len(reply) != len(holds) {
		return nil, fmt.Errorf("renew script: %d answers for %d holds", len(reply), len(holds))
	}
	renewals := make([]Renewal, len(reply))
	for i, n := range reply {
		switch n {
		case 1:
			renewals[i] = Renewed
		case 0:
			renewals[i] = Gone
		case -1:
			renewals[i] = Refused
		default:
			return nil, fmt.Errorf("renew script: unknown answer %d", n)
		}
	}
	return renewals, nil
}

// Force frees the lock whoever holds it, and reports whether it was held.
func Force(ctx context.Context, c rueidis.Client, name string, p Publish) (bool, error) {
	n, err := forceScript.Exec(ctx, c, []string{name}, []string{p.command(), p.Channel}).ToInt64()
	if err != nil {
		return false, fmt.Errorf("force script: %w", unanswered(err))
	}
	switch n {
	case 1:
		return true, nil
	case 0:
		return false, nil
	}
	return false, fmt.Errorf("force script: unknown reply %d", n)
}

func pair(r rueidis.RedisResult) ([2]int64, error) {
	s, err := numbers(r)
	if err != nil {
		return [2]int64{}, err
	}
	if len(s) != 2 {
		return [2]int64{}, fmt.Errorf("reply %v has not two numbers", s)
	}
	return [2]int64(s), nil
}

// numbers reads an array of integers. AsIntSlice of rueidis would also take true for 1, a nil for 0
// and the length of a nested array for a number.
func numbers(r rueidis.RedisResult) ([]int64, error) {
	values, err := r.ToArray()
	if err != nil {
		return nil, unanswered(err)
	}
	s := make([]int64, len(values))
	for i, v := range values {
		if !v.IsInt64() {
			return nil, fmt.Errorf("element %d of the reply is not a number", i+1)
		}
		s[i], _ = v.ToInt64()
	}
	return s, nil
}

// unanswered keeps a nil reply, which rueidis reports as a RedisError too, apart from the errors
// with which a server says that it did not do something.
func unanswered(err error) error {
	if rueidis.IsRedisNil(err) {
		return errors.New("the reply is nil")
	}
	return err
}

func millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// duration is the longest that there is for an expiry more than 292 years away, and of the negative
// ones, which all mean that there is none, the one that Redis says.
func duration(millis int64) time.Duration {
	if millis > math.MaxInt64/int64(time.Millisecond) {
		return math.MaxInt64
	}
	return time.Duration(max(millis, -1)) * time.Millisecond
}
