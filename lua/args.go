package lua

import (
	"strconv"
	"time"
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
