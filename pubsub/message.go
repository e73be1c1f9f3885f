package pubsub

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Message is a script's message to one waiting process, on the channel <unlock channel>:<client UUID>.
// lua/message.lua writes it, [ReadMessage] reads it, and this comment is its specification.
//
//	<owner> <lease> <version> <token>   a grant: that owner has the lock, or the permit with that id has been taken
//	? <ms>                              a hint: look at the lock in so many ms
//	? 0 <owner>                         a hint: the fair lock is free, and that owner is the first of its queue
//
// Fields are separated by one space. Numbers are decimal, without a sign or leading zeros.
//
//	owner    the field in the lock's hash, <client UUID>:<tag>: the entry in the queue without its mark; never "?". Or the permit's id
//	lease    in ms, at least 1: how long the owner has the lock, from when the script ran, unless it renews it
//	version  of the grant: 0
//	token    the fencing token, at least 0 (scripts give 1 to 2^53-1); "-" if there is none. Or the permit's slot
//	ms       at least 0, which means now
//
// lease and ms are no longer than a [time.Duration] can be.
//
// A grant is trusted without a command, so ReadMessage accepts only texts that [Message.String] would write. It
// treats everything else as a hint to look at once. Anybody may have published that, and the hold, if there is one,
// is in Redis, where an owner that asks finds it. So such a hint costs a command, and never a lock. Hints need no
// version for the same reason.
//
// A script does not know the version of the process it notifies. So a later version can raise the number if its four
// fields remain true for a process that ignores it, and a form that this one must not trust has another number, or more
// fields. The first field stays the owner, whose waiter then asks.
type Message struct {
	// Granted means that Owner has the lock, for Lease, with Token. Otherwise the message is a hint.
	Granted bool

	Owner string        // the addressee; "": the waiter with the process's place
	Lease time.Duration // in whole milliseconds
	Token int64         // negative: none

	After time.Duration // for a hint: when to look, in whole milliseconds
}

// grantVersion is the version of the grants that this version trusts, as written in the message.
const grantVersion = "0"

// Unlocked is the message of an unlock, as Redisson sends it. All waiters try.
const Unlocked = "0"

// ReadMessage parses a message to this process. It returns false if the message has no form known to this version;
// then it is a hint to look at once, for the owner in its first field.
func ReadMessage(text string) (m Message, known bool) {
	fields := strings.SplitN(text, " ", 5)
	if fields[0] == "?" {
		m, known = readHint(fields[1:])
		fields[0] = ""
	} else {
		m, known = readGrant(fields)
	}
	if !known {
		return Message{Owner: fields[0]}, false
	}
	return m, true
}

func readGrant(fields []string) (m Message, ok bool) {
	if len(fields) != 4 || fields[0] == "" || fields[2] != grantVersion {
		return m, false
	}
	lease, ok := readMillis(fields[1])
	token, given := readNumber(fields[3])
	if !given {
		token = -1
	}
	m = Message{Granted: true, Owner: fields[0], Lease: lease, Token: token}
	return m, ok && lease > 0 && (given || fields[3] == "-")
}

func readHint(fields []string) (m Message, ok bool) {
	switch len(fields) {
	case 1:
		m.After, ok = readMillis(fields[0])
	case 2:
		m.Owner = fields[1]
		ok = fields[0] == "0" && m.Owner != ""
	}
	return m, ok
}

func readMillis(text string) (d time.Duration, ok bool) {
	ms, ok := readNumber(text)
	return time.Duration(ms) * time.Millisecond, ok && ms <= math.MaxInt64/int64(time.Millisecond)
}

// readNumber accepts one form of each number, so that each message has one text.
func readNumber(text string) (n int64, ok bool) {
	if text == "" || text[0] < '0' || text[0] > '9' || text[0] == '0' && text != "0" {
		return 0, false
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil
}

// String returns the message as scripts write it.
func (m Message) String() string {
	switch {
	case m.Granted && m.Token < 0:
		return fmt.Sprintf("%s %d %s -", m.Owner, m.Lease.Milliseconds(), grantVersion)
	case m.Granted:
		return fmt.Sprintf("%s %d %s %d", m.Owner, m.Lease.Milliseconds(), grantVersion, m.Token)
	case m.Owner != "":
		return "? 0 " + m.Owner
	default:
		return fmt.Sprintf("? %d", m.After.Milliseconds())
	}
}
