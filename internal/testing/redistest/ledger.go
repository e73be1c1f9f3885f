package redistest

import (
	"strings"
	"sync"
)

// ledger matches each frame from the server to its command. RESP has no request ids: replies arrive in command order. There are two
// exceptions. The SUBSCRIBE family gets one push frame per channel, or a single plain error. Messages are pushed at any time.
//
// It does not support CLIENT REPLY, MONITOR, or SUBSCRIBE inside MULTI.
type ledger struct {
	mu         sync.Mutex // guards the fields below
	open       []*call    // sent but not completely answered, oldest first
	resp3      bool       // HELLO 3 was sent, so '>' marks pushed frames
	subscribed bool       // RESP2: arrays may be pushed
}

// call is a command in flight.
type call struct {
	cmd  []string
	sub  bool   // of the SUBSCRIBE family
	left int    // sub: confirmations to come; negative: known only to the server
	got  bool   // sub: at least one came
	fail string // the error line to deliver instead of the reply, if any
}

// sent records a command. With fail, the server gets a PING in its place.
func (b *ledger) sent(cmd []string, fail string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := &call{cmd: cmd, fail: fail}
	if fail == "" {
		c.sub = isSubscribe(cmd[0])
		b.subscribed = b.subscribed || c.sub
	}
	if c.left = len(cmd) - 1; c.left == 0 {
		c.left = -1 // UNSUBSCRIBE without channels: from all, whatever their number
	}
	if cmd[0] == "HELLO" && len(cmd) > 1 {
		b.resp3 = cmd[1] == "3"
	}
	b.open = append(b.open, c)
}

// answered returns the call that a frame answers, and whether the frame is a reply. For a push message the "command" is the frame itself,
// such as MESSAGE, channel, text. The call is nil for an unsolicited frame.
func (b *ledger) answered(f frame) (c *call, reply bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.pushed(f) {
		words := append([]string{strings.ToUpper(f.items[0])}, f.items[1:]...)
		if c := b.confirmed(words[0]); c != nil {
			return c, true
		}
		return &call{cmd: words}, false
	}
	for len(b.open) > 0 {
		c, b.open = b.open[0], b.open[1:]
		// A plain frame ends an UNSUBSCRIBE of unknown length, unless it is
		// the error that the command got instead of confirmations.
		if !c.sub || (f.kind == '-' && !c.got) {
			return c, true
		}
	}
	return nil, true
}

// pushed reports whether the frame is out of band: not a reply in order.
func (b *ledger) pushed(f frame) bool {
	if len(f.items) == 0 {
		return false
	}
	if f.kind == '>' {
		return true
	}
	if f.kind != '*' || b.resp3 || !b.subscribed {
		return false
	}
	switch f.items[0] {
	case "message", "pmessage", "smessage":
		return true
	}
	return isSubscribe(strings.ToUpper(f.items[0]))
}

// confirmed returns the call confirmed by a push frame called name. It returns nil for a message, and for the SUNSUBSCRIBE that a server
// sends by itself when a slot moves away.
func (b *ledger) confirmed(name string) *call {
	for isSubscribe(name) && len(b.open) > 0 && b.open[0].sub {
		c := b.open[0]
		if c.cmd[0] == name {
			c.got = true
			if c.left--; c.left == 0 {
				b.open = b.open[1:]
			}
			return c
		}
		if !c.got || c.left > 0 {
			return nil
		}
		b.open = b.open[1:] // an UNSUBSCRIBE of unknown length that is over
	}
	return nil
}

func isSubscribe(name string) bool {
	switch name {
	case "SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE", "UNSUBSCRIBE", "PUNSUBSCRIBE", "SUNSUBSCRIBE":
		return true
	}
	return false
}
