package lua

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

var (
	acquireScript = script{Text("acquire"), "8546ea24aed85bc586f4dd03841fb516c2b8d34b"}
	releaseScript = script{Text("release"), "311fba54dbc0640ca4c4704d152267b1c9b37d54"}
	renewScript   = script{Text("renew"), "dcc8d7c539374c8a7092f80e46e64c50db02e10e"}
	forceScript   = script{Text("force"), "20843753656df37b1f9adbc43c966e61094a7d99"}
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
	// Lost means that the hold which the owner wanted to re-enter, or adopt, is gone.
	Lost
)

// AcquireArgs says who wants which lock.
type AcquireArgs struct {
	Name  string
	Side  Side
	Fence string // key of the fencing counter, "" for a lock without one, and for a Reader
	Owner string
	Lease time.Duration // sent in whole milliseconds
	Count int           // the owner's count after this call, 1 for a first acquire

	// Within is the field of a hold on the other side of a read/write lock, "" if there is none: of the Writer in whose
	// section a Reader is, or of the Reader that becomes the Writer.
	Within string

	Replicas    int           // wait for so many replicas to have it; 0: for none
	ReplicaWait time.Duration // at most so long, and before it as long for a connection; sent in whole milliseconds
	Connections *Connections  // of this client, if Replicas is above 0; nil: nothing bounds what is left behind

	// Queue is the key of the queue to join if another holds the lock; "": none. On a read/write lock it is that of the
	// marks of the writers that wait: a Reader lets these go first, and a Writer that is refused leaves one.
	Queue      string
	GrantLease time.Duration // of a grant to another process there, or of the time that a mark keeps a free lock; as above
	Listens    bool          // of a Writer with a Queue: its process listens on a channel of its own
	Short      bool          // with a Queue: Lease is shorter than that of a grant may be, so the owner asks before it uses one

	// Of the first acquire of a fair lock, instead of Fence, Queue and GrantLease.
	Fair Fair
	Join bool // the owner joins the queue if it cannot have the lock

	// Ticket is the field that has the lock, if that was left to a ticket: Owner takes it from there, or is Lost. It is a first acquire.
	Ticket string

	Publish Publish // for a fair lock, a Reader with a Queue, and a Ticket
}

// AcquireReply is what Redis said.
type AcquireReply struct {
	Status Status
	Token  int64         // fencing token, if Acquired and AcquireArgs.Fence was given
	TTL    time.Duration // remaining time of the other's hold, if Held; negative: it has no expiry
	Holder string        // field of an owner, if Held; "" if it was not seen, or a fair lock is free for another one
	Joined bool          // the owner is in the queue, if Held
	Behind bool          // it has just joined that of a fair lock, behind a hold or a waiter that may be Redisson's
	Other  bool          // what holds it, if Held, is seen to be a read/write lock and it is none, or the other way round

	WithoutQueue bool // it is as it was: the call was sent again without it
	NoQueue      bool // since the user may not use queues

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
	if without, forbidden := noQueue(result); without && a.Queue != "" {
		a.Queue = ""
		reply, err := Acquire(ctx, c, a)
		reply.WithoutQueue, reply.NoQueue = true, forbidden
		return reply, err
	}
	reply, err := refused(result)
	if err == nil && reply.Status != Held {
		reply, err = granted(result)
	}
	if reply.Status == Lost && a.Count == 1 && a.Within == "" && a.Ticket == "" {
		err = errors.New("unknown reply -1 to a first acquire")
	}
	if err != nil {
		name := "acquire"
		if a.Ticket != "" {
			name = "adopt"
		}
		return AcquireReply{}, failed(name, err, a.Fence, a.Queue, a.Fair.List, a.Fair.Times)
	}
	reply.Unconfirmed = unconfirmed
	return reply, nil
}

func (a AcquireArgs) send(ctx context.Context, c doer) rueidis.RedisResult {
	if a.Ticket != "" {
		return a.adopt(ctx, c)
	}
	if a.Fair.List != "" {
		args := append([]string{a.Owner, millis(a.Lease), flag(a.Join)}, a.Fair.tail(a.Publish)...)
		return fairAcquireScript.run(ctx, c, []string{a.Name, a.Fair.List, a.Fair.Times}, args...)
	}
	var keys [3]string
	args, n := a.args()
	s := acquireScripts[a.Side]
	if a.Side == Writer && a.Fence != "" {
		s = fencedWriteScript
	}
	return s.run(ctx, c, keysOf(&keys, a.Name, a.Fence, a.Queue), args[:n]...)
}

// args are the first n of these.
func (a AcquireArgs) args() (args [7]string, n int) {
	args = [...]string{
		a.Owner, millis(a.Lease), strconv.Itoa(a.Count), a.Within, millis(a.GrantLease), a.Publish.command(), a.Publish.Name,
	}
	n = 4
	switch a.Side {
	case Reader:
		if a.Queue != "" {
			n = 7
		}
	case Writer:
		if args[4] = flag(a.Listens); a.Queue != "" {
			n = 5
		}
	default:
		args[3], args[4] = args[4], flag(a.Short)
		switch { // each argument takes Redis half as long as a command in the script
		case a.Queue == "":
			n = 3
		case a.Short:
			n = 5
		}
	}
	return args, n
}

// keysOf puts the keys that a call has into memory of the caller.
func keysOf(memory *[3]string, name, fence, queue string) []string {
	memory[0] = name
	keys := memory[:1]
	for _, key := range [...]string{fence, queue} {
		if key != "" {
			keys = append(keys, key)
		}
	}
	return keys
}

// ReleaseArgs says who gives which lock back, and who gets it.
type ReleaseArgs struct {
	Name    string
	Side    Side   // a Reader or a Writer has no Next, and so it needs no Fence
	Fence   string // key of the fencing counter, which is raised for the next owner; "" for a lock without one
	Owner   string
	Count   int           // the owner's count after this call, 0 to end the hold
	Lease   time.Duration // of what is still held, or of Next; sent in whole milliseconds
	Publish Publish       // used if Count is 0

	Next string // of this process, waits for the lock, if Count is 0; "": nobody
	Stay bool   // Next gets it, though others may be in the queue
	// Spare is how many more tokens Next is to have, for those that it passes the lock on to; only with a Fence and a Queue.
	Spare int
	// With Taken set and Count 0, the placeholder owner Next keeps the lock until Taken. Lease is not used then. Waiters are told
	// to ask how long that is.
	Taken time.Time
	// With Ticket as well, that field has the lock until then. Next is not used.
	Ticket string
	Queue

	Fair Fair // instead of Fence, Next, Stay and Queue, if Count is 0
}

// Queue is that of the processes that wait for a lock. The zero value is none: whoever waits is told, and asks.
type Queue struct {
	Key        string
	GrantLease time.Duration // of a grant to another process; sent in whole milliseconds
	Short      bool          // of Next, as in AcquireArgs
}

// Released is the answer to a release.
type Released int8

const (
	// NotHeld means that the owner does not hold the lock, which is also the answer to a repeat of a release that ended
	// the hold.
	NotHeld Released = iota + 1
	// Freed means that the owner's count is lower, or the lock is free, and whoever waits was told.
	Freed
	// Granted means that another process of the queue has the lock, and ReleaseArgs.Next is in the queue.
	Granted
	// HandedOff means that ReleaseArgs.Next has the lock.
	HandedOff
)

// ReleaseReply is what Redis said.
type ReleaseReply struct {
	Status Released
	Token  int64 // fencing token of ReleaseArgs.Next, if HandedOff and ReleaseArgs.Fence was given
	Spare  int64 // how many tokens above that are its own, too

	// Several says, if Freed, that several connections listen to the unlock channel. On a cluster, a plain channel may have more.
	Several bool

	WithoutQueue bool // it is as it was: the call was sent again without it
	NoQueue      bool // since the user may not use queues
}

// Release lowers the owner's count. At 0 the lock goes to ReleaseArgs.Next, to the first of the queue, or is free.
func Release(ctx context.Context, c rueidis.Client, a ReleaseArgs) (ReleaseReply, error) {
	var memory releaseMemory
	s, keys, args := a.call(&memory)
	result := s.run(ctx, c, keys, args...)
	if without, forbidden := noQueue(result); without && (a.Key != "" || a.Fair.List != "") {
		reply, err := Release(ctx, c, a.withoutQueue())
		reply.WithoutQueue, reply.NoQueue = true, forbidden && a.Key != ""
		return reply, err
	}
	return a.releasedBy(result)
}

// withoutQueue is the same for a lock without one.
func (a *ReleaseArgs) withoutQueue() ReleaseArgs {
	without := *a
	if a.Next == "" {
		without.Fence = ""
	}
	without.Queue, without.Fair = Queue{}, Fair{}
	return without
}

// noQueue reports whether a call may have been refused for its queue: the user may not touch the key, or do what is done with
// it, something else is there, there is no memory for that, or the slot is on its way to another node of a cluster, which for as long as that takes may
// have the lock and not the queue. Without the queue the lock works as with those that know nothing of it.
func noQueue(r rueidis.RedisResult) (without, forbidden bool) {
	err := r.Error()
	if err == nil { // most of the time, and then nothing is to be allocated
		return false, false
	}
	var said *rueidis.RedisError
	if !errors.As(err, &said) {
		return false, false
	}
	text := Said(said)
	if strings.HasPrefix(text, "UNTOLD ") { // it has run
		return false, false
	}
	forbidden = strings.HasPrefix(text, "NOPERM") || // and of a command in a script, before Redis 7.2 and from then on:
		strings.Contains(text, "can't run this command") || strings.Contains(text, "no permissions to run")
	return forbidden || said.IsTryAgain() || strings.HasPrefix(text, "OOM") || strings.Contains(text, wrongType), forbidden
}

// ReleaseResult is what Release returns.
type ReleaseResult struct {
	ReleaseReply
	Err error

	withoutQueue bool // it should be sent without
}

// ReleaseAll is Release for many locks, also of several cluster slots, sent as one pipeline. The results are in the order of
// all.
func ReleaseAll(ctx context.Context, c rueidis.Client, all []ReleaseArgs) []ReleaseResult {
	results := make([]ReleaseResult, len(all))
	send := func(build func(script, rueidis.Builder, []string, []string) rueidis.Completed, which []int) (unknown []int) {
		if len(which) == 0 { // a client that makes spans would show one without a name
			return nil
		}
		commands := make([]rueidis.Completed, len(which))
		for j, i := range which {
			var memory releaseMemory
			s, keys, args := all[i].call(&memory)
			// As a pipe, since rueidis takes a connection of its blocking pool for a long pipeline otherwise.
			commands[j] = build(s, c.B(), keys, args).ToPipe()
		}
		for j, result := range c.DoMulti(ctx, commands...) {
			i := which[j]
			results[i].ReleaseReply, results[i].Err = all[i].releasedBy(result)
			results[i].withoutQueue, _ = noQueue(result)
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
	send(script.byText, send(script.bySHA, each))
	var again []int
	for i := range all {
		if results[i].withoutQueue && (all[i].Key != "" || all[i].Fair.List != "") {
			all[i] = all[i].withoutQueue()
			again = append(again, i)
		}
	}
	if len(again) > 0 {
		send(script.byText, send(script.bySHA, again))
	}
	return results
}

// releaseMemory is the caller's, for the keys and arguments of a call.
type releaseMemory struct {
	keys [3]string
	args [10]string
}

// call is what to send.
func (a *ReleaseArgs) call(memory *releaseMemory) (s script, keys, args []string) {
	if a.Ticket != "" {
		return a.export()
	}
	if f := &a.Fair; f.List != "" {
		return fairReleaseScript, []string{a.Name, f.List, f.Times}, append([]string{a.Owner, millis(f.GrantLease)}, f.tail(a.Publish)...)
	}
	lease, goes := "0", flag(a.Stay)
	switch {
	case a.Count == 0 && !a.Taken.IsZero():
		lease, goes = a.leftTaken(), "2"
	case a.Count > 0 || a.Next != "":
		lease = millis(a.Lease)
	}
	memory.args = [...]string{
		a.Owner, strconv.Itoa(a.Count), lease, a.Publish.command(), a.Publish.Name, a.Next, goes,
		millis(a.GrantLease), flag(a.Short), strconv.Itoa(a.Spare),
	}
	args = memory.args[:]
	fence := a.Fence
	switch {
	case a.Side != Whole:
		args, fence = args[:5], "" // nobody is next
	case a.Key == "":
		args = args[:7]
	case a.Fence != "" && a.Spare > 0:
	case a.Short:
		args = args[:9]
	default:
		args = args[:8]
	}
	return releaseScripts[a.Side], keysOf(&memory.keys, a.Name, fence, a.Key), args
}

func flag(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

func (a *ReleaseArgs) releasedBy(r rueidis.RedisResult) (ReleaseReply, error) {
	m, err := r.ToMessage()
	if err != nil {
		return ReleaseReply{}, failed(a.script(), unanswered(err), a.Fence, a.Key)
	}
	return a.released(m)
}

// released reads the reply of the release script: a number, or a list of the token and how many are spare.
func (a *ReleaseArgs) released(m rueidis.RedisMessage) (ReleaseReply, error) {
	reply, err := readReleased(m)
	if err != nil {
		return ReleaseReply{}, failed(a.script(), err, a.Fence, a.Key, a.Fair.List, a.Fair.Times)
	}
	return reply, nil
}

func readReleased(m rueidis.RedisMessage) (ReleaseReply, error) {
	if err := m.Error(); err != nil {
		return ReleaseReply{}, unanswered(err)
	}
	if m.IsArray() {
		tokens, err := integers(m)
		if err == nil && (len(tokens) < 1 || len(tokens) > 2 || tokens[0] < 0 || tokens[len(tokens)-1] < int64(len(tokens)-1)) {
			err = errors.New("the reply is not a token")
		}
		if err != nil {
			return ReleaseReply{}, err
		}
		reply := ReleaseReply{Status: HandedOff, Token: tokens[0]}
		if len(tokens) == 2 {
			reply.Spare = tokens[1]
		}
		return reply, nil
	}
	n, err := integer(m)
	switch {
	case err != nil:
		return ReleaseReply{}, err
	case n == 0:
		return ReleaseReply{Status: NotHeld}, nil
	case n == 1:
		return ReleaseReply{Status: Freed}, nil
	case n == 2:
		return ReleaseReply{Status: Granted}, nil
	case n == 3:
		return ReleaseReply{Status: Freed, Several: true}, nil
	}
	return ReleaseReply{}, fmt.Errorf("unknown reply %d", n)
}

// Hold names an owner's hold on a lock.
type Hold struct {
	Name, Owner string
	Lease       time.Duration // of a reader, if it is not that of the call; sent in whole milliseconds
}

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
// names have to hash to one slot. On a read/write lock it is for writers.
func Renew(ctx context.Context, c rueidis.Client, lease time.Duration, holds []Hold) ([]Renewal, error) {
	return renew(ctx, c, renewScript, lease, holds)
}

func renew(ctx context.Context, c rueidis.Client, s script, lease time.Duration, holds []Hold) ([]Renewal, error) {
	keys := make([]string, len(holds))
	args := make([]string, len(holds)+1)
	args[0] = millis(lease)
	for i, h := range holds {
		keys[i], args[i+1] = h.Name, h.Owner
	}
	return verdicts("renew", s.run(ctx, c, keys, args...), len(holds))
}

// Force frees the lock whoever holds it, and reports whether it was held.
func Force(ctx context.Context, c rueidis.Client, name string, p Publish) (bool, error) {
	held, err := yes(forceScript.run(ctx, c, []string{name}, p.command(), p.Name))
	if err != nil {
		return false, failed("force", err)
	}
	return held, nil
}

// granted reads the reply of the acquire script, if it is a number: the token, or -1.
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
	return integer(m)
}

func integer(m rueidis.RedisMessage) (int64, error) {
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
	s, other := cutOther(s)
	if len(s) != 3 || !s[0].IsInt64() || !s[1].IsString() || !s[2].IsInt64() {
		return AcquireReply{}, errors.New("the reply is not a number, a text and a number")
	}
	ttl, _ := s[0].ToInt64()
	holder, _ := s[1].ToString()
	joined, _ := s[2].ToInt64()
	if joined < 0 || joined > 2 {
		return AcquireReply{}, fmt.Errorf("unknown reply %d for the queue", joined)
	}
	return AcquireReply{Status: Held, TTL: duration(ttl), Holder: holder, Joined: joined > 0, Behind: joined == 2, Other: other}, nil
}

// cutOther takes the 1 off the end of a refusal that says that a lock of another kind is in the way.
func cutOther(s []rueidis.RedisMessage) (rest []rueidis.RedisMessage, other bool) {
	if len(s) != 4 {
		return s, false
	}
	one, err := integer(s[3])
	if err != nil || one != 1 {
		return s, false
	}
	return s[:3], true
}

// numbers reads an array of integers.
func numbers(r rueidis.RedisResult) ([]int64, error) {
	m, err := r.ToMessage()
	if err != nil {
		return nil, unanswered(err)
	}
	return integers(m)
}

// integers reads an array of integers. AsIntSlice of rueidis would also take true for 1, a nil for 0
// and the length of a nested array for a number.
func integers(m rueidis.RedisMessage) ([]int64, error) {
	values, err := m.ToArray()
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

// millis is a time as Redis takes it. Most leases are whole seconds, up to a minute: their texts are there.
func millis(d time.Duration) string {
	if s := d / time.Second; d%time.Second == 0 && 0 <= s && int(s) < len(wholeSeconds) {
		return wholeSeconds[s]
	}
	return strconv.FormatInt(d.Milliseconds(), 10)
}

var wholeSeconds = func() (all [61]string) {
	for s := range all {
		all[s] = strconv.Itoa(s * 1000)
	}
	return all
}()

// duration is the longest that there is for an expiry more than 292 years away, and of the negative
// ones, which all mean that there is none, the one that Redis says.
func duration(millis int64) time.Duration {
	if millis > math.MaxInt64/int64(time.Millisecond) {
		return math.MaxInt64
	}
	return time.Duration(max(millis, -1)) * time.Millisecond
}
