package lua

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

// How arguments are written, and replies read.

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

func flag(b bool) string {
	if b {
		return "1"
	}
	return "0"
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
	if errors.Is(err, rueidis.Nil) {
		return errors.New("the reply is nil")
	}
	return err
}

// duration converts Redis's milliseconds. An expiry more than 292 years away becomes the longest Duration. All
// negative values mean that there is none, and become Redis's -1 ms.
func duration(millis int64) time.Duration {
	if millis > math.MaxInt64/int64(time.Millisecond) {
		return math.MaxInt64
	}
	return time.Duration(max(millis, -1)) * time.Millisecond
}

// pttl is duration for the reply of PTTL, whose -2, for no key, it keeps.
func pttl(millis int64) time.Duration {
	if millis == -2 {
		return -2 * time.Millisecond
	}
	return duration(millis)
}
