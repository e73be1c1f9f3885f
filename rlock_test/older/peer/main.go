// Peer takes locks by commands. The tests build it with this and older versions of the library, so it uses only their
// common API; kinds.go has the kinds missing in the oldest version.
//
// Its argument is the address of a Redis, or several for a quorum, joined by commas. It reads commands from stdin, one
// per line, and exits at end of file. Each answer begins with the ID of its command:
//
//	lock ID KIND NAME                       "locked TOKEN", with 0 for none, or "failed ERROR"
//	try ID KIND NAME                        the same for TryLock without a wait, or "taken"
//	unlock ID                               unlocks the lock of command ID: "unlocked", or "failed ERROR"
//	herd ID KIND NAME GOROUTINES DURATION   "done SECTIONS WRITES", the numbers of sections and of those that wrote, or "failed ERROR"
//	grants ID                               "grants N": how many locks other processes handed over
//
// The sections of a herd count in the key NAME:count by a read, a pause and a write. NAME:token has the last fencing token.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/rlock"
)

// A locker has the methods common to all kinds of locks.
type locker interface {
	Lock(ctx context.Context) (context.Context, rlock.UnlockFunc, error)
	TryLock(ctx context.Context, wait time.Duration) (context.Context, rlock.UnlockFunc, error)
}

type peer struct {
	rdb     rueidis.Client // bypasses the library
	clients []*rlock.Client

	mu      sync.Mutex // guards the following, and the output
	unlocks map[string]rlock.UnlockFunc
}

func main() {
	p := &peer{unlocks: make(map[string]rlock.UnlockFunc)}
	if err := p.connect(strings.Split(os.Args[1], ",")); err != nil {
		p.say("-", "failed %v", err)
		os.Exit(1)
	}
	p.say("-", "ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		go p.obey(strings.Fields(lines.Text())) // ends with its answer, or the process
	}
}

func (p *peer) connect(addrs []string) error {
	for _, addr := range addrs {
		rdb, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}})
		if err != nil {
			return err
		}
		c, err := rlock.New(rdb, rlock.Options{})
		if err != nil {
			return err
		}
		p.clients = append(p.clients, c)
	}
	rdb, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: addrs[:1], DisableCache: true})
	p.rdb = rdb
	return err
}

// lock returns a handle, and reports whether its sections may only read.
func (p *peer) lock(kind, name string) (l locker, reads bool) {
	switch kind {
	case "plain":
		return p.clients[0].Mutex(name), false
	case "fenced":
		return p.clients[0].FencedMutex(name), false
	default:
		return otherKinds[kind](p, name)
	}
}

func (p *peer) say(id, form string, values ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Println(id, fmt.Sprintf(form, values...))
}

func (p *peer) obey(words []string) {
	id, rest := words[1], words[2:]
	switch words[0] {
	case "lock":
		l, _ := p.lock(rest[0], rest[1])
		p.locked(id, rest[1], l.Lock)
	case "try":
		l, _ := p.lock(rest[0], rest[1])
		p.locked(id, rest[1], func(ctx context.Context) (context.Context, rlock.UnlockFunc, error) { return l.TryLock(ctx, 0) })
	case "unlock":
		p.mu.Lock()
		unlock := p.unlocks[id]
		delete(p.unlocks, id)
		p.mu.Unlock()
		if err := unlock(); err != nil {
			p.say(id, "failed %v", err)
		} else {
			p.say(id, "unlocked")
		}
	case "herd":
		goroutines, _ := strconv.Atoi(rest[2])
		lasts, _ := time.ParseDuration(rest[3])
		if sections, writes, err := p.herd(rest[0], rest[1], goroutines, lasts); err != nil {
			p.say(id, "failed %v", err)
		} else {
			p.say(id, "done %d %d", sections, writes)
		}
	case "grants":
		p.say(id, "grants %d", p.grants())
	}
}

func (p *peer) locked(id, name string, lock func(context.Context) (context.Context, rlock.UnlockFunc, error)) {
	ctx, unlock, err := lock(context.Background())
	switch {
	case errors.Is(err, rlock.ErrNotAcquired):
		p.say(id, "taken")
		return
	case err != nil:
		p.say(id, "failed %v", err)
		return
	}
	p.mu.Lock()
	p.unlocks[id] = unlock
	p.mu.Unlock()
	token, _ := rlock.FencingToken(ctx, name)
	p.say(id, "locked %d", token)
}

// herd runs sections on goroutines for a while, and returns the numbers of sections and of those that wrote.
func (p *peer) herd(kind, name string, goroutines int, lasts time.Duration) (sections, writes int, err error) {
	var mu sync.Mutex // guards the results
	var all sync.WaitGroup
	end := time.Now().Add(lasts)
	for range goroutines {
		all.Go(func() {
			for failed := error(nil); failed == nil && time.Now().Before(end); {
				var wrote int
				wrote, failed = p.section(kind, name)
				mu.Lock()
				sections, writes, err = sections+1, writes+wrote, errors.Join(err, failed)
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return sections, writes, err
}

func (p *peer) section(kind, name string) (writes int, err error) {
	l, reads := p.lock(kind, name)
	ctx, unlock, err := l.Lock(context.Background())
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	if token, ok := rlock.FencingToken(ctx, name); ok {
		last, err := p.swap(ctx, name+":token", func(int64) int64 { return token })
		if err == nil && last >= token {
			err = fmt.Errorf("token %d after %d", token, last)
		}
		if err != nil {
			return 0, err
		}
	}
	if !reads {
		_, err = p.swap(ctx, name+":count", func(n int64) int64 { return n + 1 })
		return 1, err
	}
	before, err1 := p.read(ctx, name+":count")
	time.Sleep(time.Duration(rand.IntN(1000)) * time.Microsecond)
	after, err2 := p.read(ctx, name+":count")
	if err = errors.Join(err1, err2); err == nil && before != after {
		err = fmt.Errorf("a reader saw %d and then %d", before, after)
	}
	return 0, err
}

// swap slowly replaces a number by change of it: a second one inside meanwhile loses an update.
func (p *peer) swap(ctx context.Context, key string, change func(int64) int64) (last int64, err error) {
	if last, err = p.read(ctx, key); err != nil {
		return 0, err
	}
	time.Sleep(time.Duration(rand.IntN(500)) * time.Microsecond)
	value := strconv.FormatInt(change(last), 10)
	return last, p.rdb.Do(ctx, p.rdb.B().Set().Key(key).Value(value).Build()).Error()
}

func (p *peer) read(ctx context.Context, key string) (int64, error) {
	n, err := p.rdb.Do(ctx, p.rdb.B().Get().Key(key).Build()).AsInt64()
	if rueidis.IsRedisNil(err) {
		return 0, nil
	}
	return n, err
}
