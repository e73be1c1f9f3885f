package rlock

import "context"

// Shutdown closes the Client when its sections have ended. From the call on, every Lock that competes returns [ErrClosed], including those
// that already wait. Running sections continue to their end: they are renewed and unlock, re-enter their holds, read as the writer, upgrade
// and downgrade. When the last of them has unlocked, Shutdown does what [Client.Close] does, and returns nil.
//
// When ctx is done first, the contexts of the remaining sections are cancelled with a [LostError] that satisfies ErrClosed. They have one
// more second to unlock. Then Shutdown closes the Client, which takes about five seconds if Redis is silent, and returns ctx.Err(). A hold
// that is not unlocked by then ends with its lease, or by a later unlock.
//
// Call it after you have shut down the sources of new work. It may be called more than once, and concurrently with any other call.
func (c *Client) Shutdown(ctx context.Context) error {
	if c.check(); ctx == nil {
		panic("rlock: the ctx is nil")
	}
	defer c.disconnect()
	return c.engine.Shutdown(ctx)
}
