package lua

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

var semaphoreScript = script{Text("semaphore"), "dff379e0ca2ca65a249ad282e78e715d1d10765b"}

// MaxWants is how many requests for permits one call can carry. The others of a process have to wait for its next call.
const MaxWants = 32

// MaxPermits is the highest number that a call can ask for or give: Redisson's are Java's int.
const MaxPermits = 1<<31 - 1

// Semaphore names a semaphore of either kind, and the process that calls. All keys have to hash to one slot of a cluster.
type Semaphore struct {
	Name     string  // the key of Redisson's counter: the number of free permits
	Requests string  // the key of what each process in the queue wants. <Requests>:<Client> and <Requests>:<Client>:permits have its last request
	Queue    string  // the key of the queue of the processes that wait; "": there is none, and whoever waits hears of each release
	Publish  Publish // Redisson's channel, <channel>:<Client> that of a process, and <channel>:rlock_queue of those in line
	Client   string  // UUID of the process

	// Keep is for how long permits are kept for a process that was told to look; sent in whole milliseconds.
	Keep time.Duration
}

// Change is what a call does to the number of free permits, before it takes any.
type Change int8

const (
	// Add adds N, which may be 0 or below: a release, or a call that only takes. It creates the counter, unless N is 0.
	Add Change = iota
	// AddIfExists is Add if the counter exists. Done is 1 if it does, else 0.
	AddIfExists
	// TrySet makes the number N if the counter does not exist. Done is 1 if it did not, else 0.
	TrySet
	// Drain takes all free permits. Done is how many. A number below 0 stays as it is.
	Drain
	// SetTotal makes N the number of all permits, of a PermitSemaphore: those that are free and those that are held. The number of free ones may go below
	// 0. Done is 1 if it changed, else 0.
	SetTotal
)

// word is what the scripts call it.
func (c Change) word() string {
	return [...]string{Add: "add", AddIfExists: "exists", TrySet: "set", Drain: "drain", SetTotal: "total"}[c]
}

// SemaphoreArgs is one request of a process: it gives permits back, or changes their number, and then takes some for its waiters.
type SemaphoreArgs struct {
	Semaphore

	// Request is the number of this request, higher than those of all that the Client made of this semaphore before. A Client makes one after the
	// other: when a call was answered, or given up. The same call sent again, because its reply was lost, has the same number, changes nothing,
	// and gets the same answer, unless the last one was made more than two minutes before. A copy that comes when another request has followed does nothing.
	Request int64

	Change Change
	N      int64

	// Wants are the numbers of permits that waiters want, each from 1 to MaxPermits, in their order; at most MaxWants. Each is granted whole or not at
	// all.
	Wants []int64
	// Waits says that Wants are those of the process's waiters. The process then stands in the queue for those that are not granted, at its old place if
	// the first is one of them, or leaves it if there are none: a call without Wants leaves. Without Waits, which is a single try, its place
	// stays as it is.
	Waits bool

	// Cancel ends a request whose answer nobody waits for any more. With the Request, Change, N and Wants of that, it gives back what was taken. If the request has not run,
	// its Change is made, nothing is taken, and a copy that comes late does nothing. The process's place stays as it is. It can be
	// repeated as any other call.
	Cancel bool
}

// SemaphoreReply is what Redis said.
type SemaphoreReply struct {
	Free    int64 // permits, after the call; below 0 if their number was lowered while they were held
	Done    int64 // what came of the Change
	Granted []int // indices of Wants, rising

	// Again is when to ask again, with a new Request, if not all are granted and no message comes before; 0: at once, because this was
	// a repeat. Somebody has to: the process's place ends a second later, at most a minute after the call.
	Again time.Duration
}

// UseSemaphore changes the number of permits, and takes some. A process that waits subscribes to its three channels first, asks, and asks
// again when it is told `? 0`; in so many ms when it is told `? <ms>`; when a number without a leading zero is published on the
// channel of the semaphore; when it has no place and there is a number with one; when it has a new connection; and after Again.
func UseSemaphore(ctx context.Context, c rueidis.Client, a SemaphoreArgs) (SemaphoreReply, error) {
	args := a.args(MaxWants)
	for _, n := range a.Wants {
		args = append(args, strconv.FormatInt(n, 10))
	}
	reply, _, err := used(semaphoreScript.run(ctx, c, a.keys(a.Client), args...), 4, len(a.Wants))
	if err != nil {
		return SemaphoreReply{}, counterFailed("semaphore", err, a.Requests, a.Queue)
	}
	return reply, nil
}

// keys are the counter, the record of that client, further ones, and those of the queue if there is one.
func (s *Semaphore) keys(client string, further ...string) []string {
	keys := append(make([]string, 0, 6), s.Name, s.Requests+":"+client)
	return append(append(keys, further...), s.line()...)
}

// line are the keys of the queue, if there is one.
func (s *Semaphore) line() []string {
	if s.Queue == "" {
		return nil
	}
	return []string{s.Queue, s.Requests}
}

// args are those with which the arguments of both scripts begin, with room for more.
func (a *SemaphoreArgs) args(more int) []string {
	mode := flag(a.Waits)
	if a.Cancel {
		mode = "2"
	}
	return append(make([]string, 0, 8+more), a.Client, strconv.FormatInt(a.Request, 10), a.Change.word(), strconv.FormatInt(a.N, 10), mode,
		a.Publish.command(), a.Publish.Name, millis(a.Keep))
}

// used reads a reply of so many parts to a call that wanted permits so many times.
func used(r rueidis.RedisResult, parts, wants int) (reply SemaphoreReply, rest []rueidis.RedisMessage, err error) {
	s, err := r.ToArray()
	if err != nil {
		return reply, nil, unanswered(err)
	}
	if len(s) != parts {
		return reply, nil, fmt.Errorf("the reply has %d parts, not %d", len(s), parts)
	}
	free, err1 := integer(s[0])
	done, err2 := integer(s[1])
	again, err3 := integer(s[2])
	granted, err4 := integers(s[3])
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return reply, nil, err
	}
	reply = SemaphoreReply{Free: free, Done: done, Again: duration(max(again, 0))}
	last := int64(0)
	for _, which := range granted {
		if which <= last || which > int64(wants) {
			return SemaphoreReply{}, nil, fmt.Errorf("request %d of %d is granted behind %d", which, wants, last)
		}
		last = which
		reply.Granted = append(reply.Granted, int(which-1))
	}
	return reply, s[4:], nil
}

// FreePermits returns how many permits of a plain semaphore are free, and whether it exists. The number is below 0 if it was lowered while
// permits were held.
func FreePermits(ctx context.Context, c rueidis.Client, name string) (n int64, exists bool, err error) {
	return counted(ctx, c, name)
}
