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
	Sharded bool   // SPUBLISH instead of PUBLISH: the channel must then hash to the lock's slot
}

func (p Publish) command() string {
	if p.Sharded {
		return "spublish"
	}
	return "publish"
}

// Status is the answer to an acquire. The zero value is no answer, so that it cannot be mistaken for success.
type Status int8

const (
	// Acquired means that the owner holds the lock, as deep as requested.
	Acquired Status = iota + 1
	// Held means that another owner holds the lock.
	Held
	// Lost means that the hold to re-enter or adopt is gone.
	Lost
)

// AcquireArgs says who wants which lock.
type AcquireArgs struct {
	Name  string
	Side  Side
	Fence string // key of the fencing counter; "" for a lock without tokens, and for a Reader
	Owner string
	Lease time.Duration // sent in whole milliseconds
	Count int           // the owner's count after this call, 1 for a first acquire

	// Within is the field of a hold on the other side of a read/write lock; "": none. For a Reader that is the Writer
	// around it, for a Writer the Reader that it replaces.
	Within string

	Replicas    int           // wait until so many replicas have the lock; 0: for none
	ReplicaWait time.Duration // the longest such wait, and the longest wait for a connection before it; sent in whole milliseconds
	Connections *Connections  // of this client, if Replicas is above 0; nil: no bound on goroutines left behind

	// Queue is the key of the queue to join if another owner holds the lock; "": none. On a read/write lock it holds
	// the marks of waiting writers: a Reader lets these go first, and a refused Writer leaves one.
	Queue      string
	GrantLease time.Duration // of a grant to another process there, or how long a mark reserves a free lock; as above
	Listens    bool          // for a Writer with a Queue: its process listens on a channel of its own
	Short      bool          // with a Queue: Lease may be shorter than a grant's, so the owner asks before it uses a grant

	// Fair is for the first acquire of a fair lock, instead of Fence, Queue and GrantLease.
	Fair Fair
	Join bool // the owner joins the queue if it cannot have the lock

	// Ticket is the field of a ticket that has the lock: Owner takes the lock from it, or is Lost. It is a first
	// acquire.
	Ticket string

	Publish Publish // for a fair lock, a Reader with a Queue, and a Ticket
}

// AcquireReply is Redis's answer.
type AcquireReply struct {
	Status Status
	Token  int64         // fencing token, if Acquired and AcquireArgs.Fence was given
	TTL    time.Duration // remaining time of the other hold, if Held; negative: no expiry
	Holder string        // field of an owner, if Held; "" if unseen, or if a fair lock is free for another waiter
	Joined bool          // the owner is in the queue, if Held
	Behind bool          // it has just joined a fair lock's queue, behind a hold or a waiter that may be Redisson's
	Other  bool          // if Held: only one of the two, the holder and the request, is of a read/write lock

	WithoutQueue bool // the queue is unchanged: the call was repeated without it
	NoQueue      bool // because the user may not use queues

	// Unconfirmed says why it is unknown whether enough replicas have the Acquired lock.
	Unconfirmed error
}

// Acquire takes the lock or re-enters it. A repeat with the same arguments after a lost reply does not count twice.
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

// args returns the arguments; only the first n are used.
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

// keysOf puts a call's keys into the caller's memory.
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

// ReleaseArgs says who releases which lock, and who gets it.
type ReleaseArgs struct {
	Name    string
	Side    Side   // a Reader or a Writer has no Next, and so needs no Fence
	Fence   string // key of the fencing counter, which is raised for the next owner; "" for a lock without tokens
	Owner   string
	Count   int           // the owner's count after this call, 0 to end the hold
	Lease   time.Duration // of the remaining hold, or of Next; sent in whole milliseconds
	Publish Publish       // used if Count is 0

	Next string // owner of this process that waits for the lock, if Count is 0; "": none
	Stay bool   // Next gets the lock even if others are in the queue
	// Spare is the number of further tokens for Next, which passes them on with the lock; only with a Fence and a
	// Queue.
	Spare int
	// With Taken set and Count 0, the placeholder owner Next keeps the lock until Taken. Lease is unused then. A
	// message makes waiters ask for the remaining time.
	Taken time.Time
	// With Ticket as well, that field has the lock until Taken. Next is unused.
	Ticket string
	Queue

	Fair Fair // instead of Fence, Next, Stay and Queue, if Count is 0
}

// Queue is the queue of the processes waiting for a lock. The zero value is none: all waiters get a message, and ask.
type Queue struct {
	Key        string
	GrantLease time.Duration // of a grant to another process; sent in whole milliseconds
	Short      bool          // of Next, as in AcquireArgs
}

// Released is the answer to a release.
type Released int8

const (
	// NotHeld means that the owner does not hold the lock. A repeat of a release that ended the hold gets the same
	// answer.
	NotHeld Released = iota + 1
	// Freed means that the owner's count was lowered, or that the lock is free and waiters got a message.
	Freed
	// Granted means that another process in the queue has the lock, and ReleaseArgs.Next is in the queue.
	Granted
	// HandedOff means that ReleaseArgs.Next has the lock.
	HandedOff
)

// ReleaseReply is Redis's answer.
type ReleaseReply struct {
	Status Released
	Token  int64 // fencing token of ReleaseArgs.Next, if HandedOff and ReleaseArgs.Fence was given
	Spare  int64 // how many tokens above Token it also owns

	// Several means, if Freed, that several connections listen to the unlock channel. A plain channel on a cluster
	// may have more listeners than Redis counts.
	Several bool

	WithoutQueue bool // the queue is unchanged: the call was repeated without it
	NoQueue      bool // because the user may not use queues
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

// withoutQueue returns the same call without a queue.
func (a *ReleaseArgs) withoutQueue() ReleaseArgs {
	without := *a
	if a.Next == "" {
		without.Fence = ""
	}
	without.Queue, without.Fair = Queue{}, Fair{}
	return without
}

// noQueue reports whether the queue may be the reason that a call was refused: the user may not touch the key or use
// its commands, the key holds something else, memory is short, or the slot is moving. During a move, the other
// cluster node may have the lock and not the queue. Without the queue the lock works as for clients that do not know
// queues.
func noQueue(r rueidis.RedisResult) (without, forbidden bool) {
	err := r.Error()
	if err == nil { // the usual case, which must not allocate
		return false, false
	}
	var said *rueidis.RedisError
	if !errors.As(err, &said) {
		return false, false
	}
	text := Said(said)
	if strings.HasPrefix(text, "UNTOLD ") { // the script has run
		return false, false
	}
	forbidden = strings.HasPrefix(text, "NOPERM") || // and for a command in a script, before Redis 7.2 and from then on:
		strings.Contains(text, "can't run this command") || strings.Contains(text, "no permissions to run")
	return forbidden || said.IsTryAgain() || strings.HasPrefix(text, "OOM") || strings.Contains(text, wrongType), forbidden
}

// ReleaseResult is the result of Release.
type ReleaseResult struct {
	ReleaseReply
	Err error

	withoutQueue bool // to be repeated without the queue
}

// ReleaseAll is Release for many locks, also in several cluster slots, sent as one pipeline. The results are in the
// order of all.
func ReleaseAll(ctx context.Context, c rueidis.Client, all []ReleaseArgs) []ReleaseResult {
	results := make([]ReleaseResult, len(all))
	send := func(build func(script, rueidis.Builder, []string, []string) rueidis.Completed, which []int) (unknown []int) {
		if len(which) == 0 { // a tracing client would show a span without a name
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

// releaseMemory is the caller's memory for a call's keys and arguments.
type releaseMemory struct {
	keys [3]string
	args [10]string
}

// call returns the script to send, with its keys and arguments.
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

// released reads the reply of the release script: a number, or a list of the token and the number of spare ones.
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
	Lease       time.Duration // of a reader, if different from the call's; sent in whole milliseconds
}

// Renewal is the answer for one hold. The zero value is no answer.
type Renewal int8

const (
	// Renewed means that the expiry is now at least the lease away.
	Renewed Renewal = iota + 1
	// Gone means that the owner does not hold the lock.
	Gone
	// Refused means that Redis could not read this key now, for example because the user may not.
	Refused
)

// Renew extends the expiry of all holds to lease from now and answers for each. On a cluster all names must hash to
// one slot. On a read/write lock it is for writers.
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

// granted reads a number as the reply of the acquire script: the token, or -1.
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

// refused reads the list by which the acquire script reports another holder. Its status is 0 if the reply is not a
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

// cutOther removes the final 1 of a refusal, which means that a lock of another kind is in the way.
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

// integers reads an array of integers. AsIntSlice of rueidis would also take true for 1, a nil for 0 and the length
// of a nested array for a number.
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

// unanswered separates a nil reply, which rueidis also reports as a RedisError, from errors by which a server says
// that it did not do something.
func unanswered(err error) error {
	if rueidis.IsRedisNil(err) {
		return errors.New("the reply is nil")
	}
	return err
}

// millis formats a time for Redis. Most leases are whole seconds, up to a minute; for these the text is ready.
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

// duration converts Redis's milliseconds. An expiry more than 292 years away becomes the longest Duration. All
// negative values mean that there is none, and become Redis's -1 ms.
func duration(millis int64) time.Duration {
	if millis > math.MaxInt64/int64(time.Millisecond) {
		return math.MaxInt64
	}
	return time.Duration(max(millis, -1)) * time.Millisecond
}
