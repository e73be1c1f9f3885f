package pubsub

import "github.com/redis/rueidis"

// Channel names a pub/sub channel. Grants to this process come on another channel beside it, see [New].
type Channel struct {
	Name    string
	Sharded bool // SSUBSCRIBE instead of SUBSCRIBE
}

// Publish returns the command that publishes a message on the channel.
func (ch Channel) Publish(b rueidis.Builder, message string) rueidis.Completed {
	if ch.Sharded {
		return b.Spublish().Channel(ch.Name).Message(message).Build()
	}
	return b.Publish().Channel(ch.Name).Message(message).Build()
}

// line is the suffix of the channel on which processes in line listen beside the unlock channel. Nothing is ever said
// there. A process that listens to the unlock channel alone is not in line, and needs unlock messages: see
// release.lua.
const line = ":rlock_queue"

// InLine returns the channel for processes in line, beside the unlock channel.
func InLine(ch Channel) Channel { return ch.beside(line) }

func (ch Channel) beside(suffix string) Channel { return Channel{ch.Name + suffix, ch.Sharded} }
