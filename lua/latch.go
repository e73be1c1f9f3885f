package lua

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

var (
	latchSetScript       = script{Text("latch_set"), "cd24501f36a110d8982573f3d4f8a352bbcf1425"}
	latchCountDownScript = script{Text("latch_count_down"), "164f2642727e482b18518d4d1c9f8e8b678bb852"}
	latchDeleteScript    = script{Text("latch_delete"), "7cea267667dba21c4a1ce621b0034abbeb18e08e"}
	latchLookScript      = script{Text("latch_look"), "c2f6d14d53efbe20317932af300468aba9e85de8"}
)

// ErrNoCounter means that the key of a latch or a semaphore does not hold a number. Nothing was changed.
var ErrNoCounter = errors.New("not a counter")

// LatchCall is a call that changes a latch. Repeated with the same arguments after a lost reply, it gets the same
// answer and changes nothing, as long as the record is kept.
type LatchCall struct {
	Name   string
	Record string // key of the record of calls; in the latch's slot
	Client string
	Number uint64        // higher than in all earlier calls of the client for this latch, which it makes one after the other
	Keep   time.Duration // how long the record is kept; sent in whole milliseconds
	Publish
}

// SetCount sets the count of a latch that has none. It returns false if the latch has a count.
func SetCount(ctx context.Context, c rueidis.Client, a LatchCall, n int64) (bool, error) {
	return a.run(ctx, c, latchSetScript, "set", strconv.FormatInt(n, 10))
}

// CountDown lowers the count of a latch by n. It returns false if the latch has none. At 0 the latch is gone.
func CountDown(ctx context.Context, c rueidis.Client, a LatchCall, n int64) (bool, error) {
	return a.run(ctx, c, latchCountDownScript, "count-down", strconv.FormatInt(n, 10))
}

// DeleteLatch deletes a latch. It returns false if there was none.
func DeleteLatch(ctx context.Context, c rueidis.Client, a LatchCall) (bool, error) {
	return a.run(ctx, c, latchDeleteScript, "delete")
}

func (a *LatchCall) run(ctx context.Context, c rueidis.Client, s script, name string, more ...string) (bool, error) {
	args := []string{a.Client, strconv.FormatUint(a.Number, 10), millis(a.Keep), a.command(), a.Publish.Name}
	result := s.run(ctx, c, []string{a.Name, a.Record}, append(args, more...)...)
	n, err := result.AsInt64()
	if err == nil && n != 0 && n != 1 {
		err = fmt.Errorf("unknown reply %d", n)
	}
	if err != nil {
		return false, counterFailed("latch "+name, err, a.Record)
	}
	return n == 1, nil
}

// Latch is the state of a latch.
type Latch struct {
	Count int64         // 0 or less: nobody need wait
	TTL   time.Duration // as in Info; 0 without a count
	// Set is the call that last set the count; "" if unknown. If Set differs from an earlier look's, or was unknown
	// then, the latch had no count in between.
	Set string
}

// LookAtLatch reads the state of a latch.
func LookAtLatch(ctx context.Context, c rueidis.Client, name, record string) (l Latch, err error) {
	reply, err := latchLookScript.run(ctx, c, []string{name, record}).ToMessage()
	if err != nil {
		return l, counterFailed("latch look", err, record)
	}
	if n, err := reply.AsInt64(); err == nil && n == 0 {
		return l, nil
	}
	parts, err := reply.ToArray()
	if err == nil && len(parts) != 3 {
		err = errors.New("unknown reply")
	}
	if err != nil {
		return l, counterFailed("latch look", err, record)
	}
	count, err1 := parts[0].AsInt64()
	ttl, err2 := parts[1].AsInt64()
	set, err3 := parts[2].ToString()
	if err := errors.Join(err1, err2, err3); err != nil {
		return l, counterFailed("latch look", err, record)
	}
	return Latch{Count: count, TTL: pttl(ttl), Set: set}, nil
}

// LatchCount returns the count of a latch; 0 if it has none.
func LatchCount(ctx context.Context, c rueidis.Client, name string) (int64, error) {
	n, _, err := counted(ctx, c, name)
	return n, err
}

// counted reads a counter, and reports whether it exists.
func counted(ctx context.Context, c rueidis.Client, name string) (n int64, exists bool, err error) {
	text, err := c.Do(ctx, c.B().Get().Key(name).Build()).ToString()
	switch {
	case errors.Is(err, rueidis.Nil):
		return 0, false, nil
	case err != nil:
		return 0, false, counterFailed("GET", err)
	}
	if n, err = strconv.ParseInt(text, 10, 64); err != nil {
		return 0, false, fmt.Errorf("%w: the key holds a text that is no count", ErrNoCounter)
	}
	return n, true, nil
}

// counterFailed is the error of a script for a counter; beside lists its other keys.
func counterFailed(script string, err error, beside ...string) error {
	var said *rueidis.RedisError
	if errors.As(err, &said) {
		text := Said(said)
		if what, ok := strings.CutPrefix(text, "FOREIGN "); ok { // see latch.lua
			return &knownError{ErrNoCounter, said, what}
		}
		if strings.Contains(text, wrongType) {
			what := "the key holds another type than a number (WRONGTYPE)"
			if len(beside) > 0 {
				what = fmt.Sprintf("the key, or one of %q beside it, holds another type (WRONGTYPE)", beside)
			}
			return &knownError{ErrNoCounter, said, what}
		}
	}
	return failed(script, err)
}
