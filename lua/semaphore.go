package lua

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

var (
	semaphoreDeleteScript = script{Text("semaphore_delete"), "f26de07ec38ba2c8777ff04658d956608689022d"}
	semaphoreScript       = script{Text("semaphore"), "c06fa013d1a483f3a571f3651fc44f3d8275e3df"}
)

// MaxWants bounds the requests for permits in one call. A process's other requests wait for its next call.
const MaxWants = 32

// MaxPermits is the highest number that a call can ask for or give: Redisson's are Java's int.
const MaxPermits = 1<<31 - 1

// Semaphore names a semaphore of either kind, and the calling process. On a cluster all keys must hash to one slot.
type Semaphore struct {
	Name     string  // the key of Redisson's counter: the number of free permits
	Requests string  // the key of the queued processes' wants. <Requests>:<Client> has a process's last request
	Queue    string  // the key of the queue of waiting processes, and with :ends behind it of when their places end; "": none, and all waiters hear of each release
	Publish  Publish // Redisson's channel; <channel>:<Client> is a process's own, <channel>:rlock_queue that of processes in line
	Client   string  // UUID of the process, maybe with more behind a colon

	// Keep is how long permits are reserved for a process after a message that made it look; sent in whole
	// milliseconds.
	Keep time.Duration
}

// Change is a call's change to the number of free permits, before it takes any.
type Change int8

const (
	// Add adds N, which may be 0 or below: a release, or a call that only takes. It creates the counter, unless N is
	// 0.
	Add Change = iota
	// AddIfExists is Add if the counter exists. Done is 1 if it does, else 0.
	AddIfExists
	// TrySet sets the number to N if the counter does not exist. Done is 1 if it did not, else 0.
	TrySet
	// Drain takes all free permits; Done is their number. A number below 0 stays unchanged.
	Drain
	// SetTotal makes N the number of all permits of a PermitSemaphore, free and held. The number of free ones may
	// fall below 0. Done is 1 if it changed, else 0.
	SetTotal
)

// word is the scripts' name for c.
func (c Change) word() string {
	return [...]string{Add: "add", AddIfExists: "exists", TrySet: "set", Drain: "drain", SetTotal: "total"}[c]
}

// SemaphoreArgs is one request of a process: it gives permits back, or changes their number, and then takes some for
// its waiters.
type SemaphoreArgs struct {
	Semaphore

	// Request is the number of this request, higher than those of all earlier requests of the Client for this
	// semaphore, after each second by about a million or more: the record of requests lives on only then. A Client
	// makes one after the other: the next when a call was answered or given up. A repeat after a lost reply has the
	// same number, changes nothing, and gets the same answer, within two minutes of when the last one was numbered.
	// A copy that arrives after another request does nothing.
	Request int64

	Change Change
	N      int64

	// Wants are the numbers of permits that waiters want, in order, each from 1 to MaxPermits; at most MaxWants. Each
	// is granted whole or not at all, and none before those in front of it.
	Wants []int64
	// Waits means that Wants are those of the process's waiters. The process then stands in the queue for those not
	// granted, at its old place if the first is one of them. With none left it leaves the queue, so a call without
	// Wants leaves. A single try, without Waits, does not change its place.
	Waits bool

	// Cancel ends a request whose answer is no longer wanted, and has its Request, Change, N and Wants. It gives back
	// what that request took. If the request has not run, its Change is made, nothing is taken, and a late copy does
	// nothing. The process's place stays as it is. It can be repeated like any other call.
	Cancel bool
}

// SemaphoreReply is Redis's answer.
type SemaphoreReply struct {
	Free    int64 // permits, after the call; below 0 if their number was lowered while they were held
	Done    int64 // the outcome of the Change
	Granted []int // indices of Wants, rising

	// Again is when to ask again, with a new Request, if not all are granted and no message comes before; 0: at once,
	// because this was a repeat. The process must ask: its place ends half of Keep later.
	Again time.Duration
}

// UseSemaphore changes the number of permits, and takes some. A waiting process first subscribes to its three
// channels, then asks. It asks again
//
//   - after a message `? 0`, and <ms> milliseconds after `? <ms>`;
//   - when a number without a leading zero is published on the semaphore's channel;
//   - when it has no place and a number with a leading zero is published there;
//   - when it has a new connection;
//   - after Again.
func UseSemaphore(ctx context.Context, c rueidis.Client, a SemaphoreArgs) (SemaphoreReply, error) {
	alone := a.alone()
	reply, err := a.used(semaphoreScript.run(ctx, c, a.keys(a.Client), a.args(make([]string, 0, 4), flag(a.Waits), alone)...), alone)
	if err != nil {
		return SemaphoreReply{}, counterFailed("semaphore", err, a.Requests, a.Queue)
	}
	return reply.SemaphoreReply, nil
}

// keys are the counter, the client's record, further keys, and those of the queue if there is one.
func (s *Semaphore) keys(client string, further ...string) []string {
	keys := append(make([]string, 0, 7), s.Name, s.Requests+":"+client)
	return append(append(keys, further...), s.line()...)
}

// line returns the keys of the queue, if there is one.
func (s *Semaphore) line() []string {
	if s.Queue == "" {
		return nil
	}
	return []string{s.Queue, s.Requests, s.Queue + ":ends"}
}

// alone returns the change to the number of permits by a request that gives permits, or takes some for one waiter, and is nothing else; 0: it
// is something else. The scripts are faster for these.
func (a *SemaphoreArgs) alone() int64 {
	switch {
	case a.Cancel || a.Change != Add:
	case a.N == 0 && len(a.Wants) == 1:
		return -a.Wants[0]
	case a.N > 0 && len(a.Wants) == 0:
		return a.N
	}
	return 0
}

// args appends the first arguments of both scripts.
func (a *SemaphoreArgs) args(to []string, mode string, alone int64) []string {
	change := strconv.FormatInt(alone, 10)
	if alone == 0 {
		change = a.Change.word() + " " + strconv.FormatInt(a.N, 10)
	}
	if a.Cancel {
		mode = "2"
	}
	how := a.how(mode)
	for i, n := range a.Wants {
		if i > 0 {
			how = append(how, ',')
		}
		how = strconv.AppendInt(how, n, 10)
	}
	return append(to, strconv.FormatInt(a.Request, 10), change, string(how), a.Publish.Name)
}

// how is the scripts' argument about messages.
func (s *Semaphore) how(mode string) []byte {
	how := append(make([]byte, 0, 32), s.Publish.command()...)
	how = append(append(how, ' '), mode...)
	return append(append(append(how, ' '), millis(s.Keep)...), ' ')
}

// allGranted and released are the lists in an answer that is a number alone.
var (
	allGranted = []int{0}
	released   = []Given{PermitReleased}
)

// used reads a reply of both scripts. Those to a plain semaphore have no slots and nothing given back, except that an answer which is a number
// alone is read alike for both.
func (a *SemaphoreArgs) used(r rueidis.RedisResult, alone int64) (reply PermitsReply, err error) {
	message, err := r.ToMessage()
	if err != nil {
		return PermitsReply{}, unanswered(err)
	}
	if n, err := message.ToInt64(); err == nil && alone != 0 {
		reply.Free, reply.Done = n, 1
		if alone < 0 {
			reply.Granted, reply.Slots = allGranted, []int64{n}
		} else {
			reply.Released = released
		}
		return reply, nil
	}
	text, err := message.ToString()
	if err != nil {
		return PermitsReply{}, err
	}
	parts := strings.Split(text, "|")
	if len(parts) != 7 {
		return PermitsReply{}, fmt.Errorf("the reply has %d parts, not 7", len(parts))
	}
	var numbers [4]int64
	var lists [3][]int64
	for i, part := range parts {
		if i < len(numbers) {
			numbers[i], err = strconv.ParseInt(part, 10, 64)
		} else {
			lists[i-len(numbers)], err = numbersOf(part)
		}
		if err != nil {
			return PermitsReply{}, err
		}
	}
	granted, slots, given := lists[0], lists[1], lists[2]
	if numbers[2] < 0 || numbers[2] > 1 {
		return PermitsReply{}, fmt.Errorf("%d is neither 0 nor 1", numbers[2])
	}
	reply = PermitsReply{
		SemaphoreReply: SemaphoreReply{Free: numbers[0], Done: numbers[3], Again: duration(max(numbers[1], 0))}, More: numbers[2] == 1, Slots: slots,
	}
	last := int64(0)
	for _, which := range granted {
		if which <= last || which > int64(len(a.Wants)) {
			return PermitsReply{}, fmt.Errorf("request %d of %d is granted behind %d", which, len(a.Wants), last)
		}
		last = which
		reply.Granted = append(reply.Granted, int(which-1))
	}
	for _, n := range given {
		if n < 0 || n > 2 {
			return PermitsReply{}, fmt.Errorf("unknown answer %d to a release", n)
		}
		reply.Released = append(reply.Released, Given(n+1))
	}
	return reply, nil
}

// numbersOf reads numbers separated by commas.
func numbersOf(text string) (numbers []int64, err error) {
	if text == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		n, err := strconv.ParseInt(part, 10, 64)
		if err != nil {
			return nil, err
		}
		numbers = append(numbers, n)
	}
	return numbers, nil
}

// FreePermits returns how many permits of a plain semaphore are free, and whether it exists. The number is below 0 if
// it was lowered while permits were held.
func FreePermits(ctx context.Context, c rueidis.Client, name string) (n int64, exists bool, err error) {
	return counted(ctx, c, name)
}

// DeleteSemaphore deletes a plain semaphore, and returns false if there was none.
func DeleteSemaphore(ctx context.Context, c rueidis.Client, name string) (bool, error) {
	return deleteSemaphore(ctx, c, name)
}

func deleteSemaphore(ctx context.Context, c rueidis.Client, keys ...string) (bool, error) {
	deleted, err := yes(semaphoreDeleteScript.run(ctx, c, keys))
	if err != nil {
		return false, counterFailed("semaphore_delete", err, keys[1:]...)
	}
	return deleted, nil
}
