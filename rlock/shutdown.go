package rlock

import "context"

// Shutdown closes the Client when its sections have ended. From the call on, every Lock that competes returns [ErrClosed], including those that
// already wait. Running sections are renewed, and can unlock, re-enter, read as the writer, upgrade and downgrade. After the last unlock,
// Shutdown does what [Client.Close] does, and returns nil. When ctx is done first, the remaining sections are cancelled, and have one more
// second to unlock; then it closes the Client and returns ctx.Err(). It may be called more than once.
func (c *Client) Shutdown(ctx context.Context) error {
	c.check()
	needs(ctx)
	defer c.disconnect()
	return c.engine.Shutdown(ctx)
}
