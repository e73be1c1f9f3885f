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

	acquireScript = script{acquireText, "88d5bae3694b6c7a20fd8f57823b4231d52fb824"}
	releaseScript = script{releaseText, "321d26c0cf9278bffbeb49b726d6e3b08c67ba10"}
	handOffScript = script{handOffText, "55540ab81b028bcc019e4485e34d6a88685466f2"}
	renewScript   = script{renewText, "fec99a285d086502367de86ad4ffb4ece776e9dc"}
	forceScript   = script{forceText, "2aaab42812c0e0ef1049983e908398fee0fa6e09"}
)

// Publish says where an unlock is announced.
type Publish struct {
	Name    string // of the channel
	Sharded bool   // SPUBLISH instead of PUBLISH: the channel then has to hash to the slot of the lock
}

func (p Publish) command() string {
	if p.Sharded {
		return "spublish"
	}
	return "publish"
}

// Status is the answer to an acquire. The zero value is no answer, so that it cannot be taken for
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
	ReplicaWait time.Duration // at most so long, and before it as long for a connection; sent in whole milliseconds
	Connections *Connections  // of this client, if Replicas is above 0; nil: nothing bounds what is left behind
}

// AcquireReply is what Redis said.
type AcquireReply struct {
	Status Status
	Token  int64         // fencing token, if Acquired and AcquireArgs.Fence was given
	TTL    time.Duration // remaining time of the other's hold, if Held; negative: it has no expiry
	Holder string        // field of an owner, if Held; "" if it was not seen

	// Unconfirmed says why it is not known that enough replicas have what was Acquired.
	Unconfirmed error
}

// Acquire takes the lock or re-enters it. If it was sent before and the reply was lost, sending it
// again with the same arguments does not count twice.
func Acquire(ctx context.Context, c rueidis.Client, a AcquireArgs) (AcquireReply, error) {
	var result rueidis.RedisResult
	var unconfirmed error
	if a.Replicas > 0 {
		result, unconfirmed = acquireAndWait(ctx, c, a)
	} else {
		result = a.send(ctx, c)
	}
	reply, err := refused(result)
	if err == nil && reply.Status != Held {
		reply, err = granted(result)
	}
	if reply.Status == Lost && a.Count == 1 {
		err = errors.New("unknown reply -1 to a first acquire")
	}
	if err != nil {
		return AcquireReply{}, failed("acquire", a.Fence, err)
	}
	reply.Unconfirmed = unconfirmed
	return reply, nil
}

func (a AcquireArgs) send(ctx context.Context, c doer) rueidis.RedisResult {
	lease, count := millis(a.Lease), strconv.Itoa(a.Count)
	if a.Fence == "" {
		return acquireScript.run(ctx, c, []string{a.Name}, a.Owner, lease, count)
	}
	return acquireScript.run(ctx, c, []string{a.Name, a.Fence}, a.Owner, lease, count)
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
	args := a.args()
	return released(releaseScript.run(ctx, c, []string{a.Name}, args[:]...))
}

// ReleaseResult is what Release returns.
type ReleaseResult struct {
	Held bool
	Err  error
}

// ReleaseAll is Release for many locks, also of several cluster slots, sent as one pipeline. The results are in the order of
// all.
func ReleaseAll(ctx context.Context, c rueidis.Client, all []ReleaseArgs) []ReleaseResult {
	results := make([]ReleaseResult, len(all))
	send := func(build func(rueidis.Builder, []string, []string) rueidis.Completed, which []int) (unknown []int) {
		commands := make([]rueidis.Completed, len(which))
		for n, i := range which {
			args := all[i].args()
			// As a pipe, since rueidis takes a connection of its blocking pool for a long pipeline otherwise.
			commands[n] = build(c.B(), []string{all[i].Name}, args[:]).ToPipe()
		}
		for n, result := range c.DoMulti(ctx, commands...) {
			i := which[n]
			results[i].Held, results[i].Err = released(result)
			if isUnknown(result) {
				unknown = append(unknown, i)
			}
		}
		return unknown
	}
	each := make([]int, len(all))
	for i := range all {
		each[i] = i
	}
	send(releaseScript.byText, send(releaseScript.bySHA, each))
	return results
}

func (a ReleaseArgs) args() [5]string {
	lease := "0"
	if a.Count > 0 {
		lease = millis(a.Lease)
	}
	return [...]string{a.Owner, strconv.Itoa(a.Count), lease, a.Publish.command(), a.Publish.Name}
}

func released(r rueidis.RedisResult) (bool, error) {
	held, err := yes(r)
	if err != nil {
		return false, failed("release", "", err)
	}
	return held, nil
}

// HandOffArgs says who gives which lock to whom.
type HandOffArgs struct {
	Name  string
	Fence string        // key of the fencing counter, "" if the next owner wants no token
	Owner string        // has it, for the last level
	Next  string        // gets it, with a count of 1
	Lease time.Duration // of the next owner; sent in whole milliseconds
}

// HandOff moves the lock from one owner to the next without freeing it. Lost means that the first of
// them does not hold it; then nothing was changed. So that is also the answer to a repeat.
func HandOff(ctx context.Context, c rueidis.Client, a HandOffArgs) (AcquireReply, error) {
	keys := []string{a.Name, a.Fence}
	if a.Fence == "" {
		keys = keys[:1]
	}
	reply, err := granted(handOffScript.run(ctx, c, keys, a.Owner, a.Next, millis(a.Lease)))
	if err != nil {
		return AcquireReply{}, failed("hand-off", a.Fence, err)
	}
	return reply, nil
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
	reply, err := numbers(renewScript.run(ctx, c, keys, args...))
	if err != nil {
		return nil, failed("renew", "", err)
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
	held, err := yes(forceScript.run(ctx, c, []string{name}, p.command(), p.Name))
	if err != nil {
		return false, failed("force", "", err)
	}
	return held, nil
}

// granted reads the reply of a script that gives the lock to an owner: the token, or -1.
func granted(r rueidis.RedisResult) (AcquireReply, error) {
	n, err := number(r)
	switch {
	case err != nil:
		return AcquireReply{}, err
	case n >= 0:
		return AcquireReply{Status: Acquired, Token: n}, nil
	case n == -1:
		return AcquireReply{Status: Lost}, nil
	}
	return AcquireReply{}, fmt.Errorf("unknown reply %d", n)
}

// yes reads a 1 or a 0.
func yes(r rueidis.RedisResult) (bool, error) {
	n, err := number(r)
	switch {
	case err != nil:
		return false, err
	case n == 1:
		return true, nil
	case n == 0:
		return false, nil
	}
	return false, fmt.Errorf("unknown reply %d", n)
}

func number(r rueidis.RedisResult) (int64, error) {
	m, err := r.ToMessage()
	if err != nil {
		return 0, unanswered(err)
	}
	if !m.IsInt64() { // ToInt64 would also take true, and other forms
		return 0, errors.New("the reply is not a number")
	}
	return m.ToInt64()
}

// refused reads the list with which the acquire script says that another holds the lock. Its status is 0 if the reply is no
// list.
func refused(r rueidis.RedisResult) (AcquireReply, error) {
	m, err := r.ToMessage()
	if err != nil {
		return AcquireReply{}, unanswered(err)
	}
	if !m.IsArray() {
		return AcquireReply{}, nil
	}
	s, err := m.ToArray()
	if err != nil {
		return AcquireReply{}, err
	}
	if len(s) != 2 || !s[0].IsInt64() || !s[1].IsString() {
		return AcquireReply{}, errors.New("the reply is not a number and a text")
	}
	ttl, _ := s[0].ToInt64()
	holder, _ := s[1].ToString()
	return AcquireReply{Status: Held, TTL: duration(ttl), Holder: holder}, nil
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
