package engine

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-rlock/rlock/internal/kinds"
)

// A Client with Options.Label marks its owners (kinds.Labelled) and keeps the label in Redis under kinds.LabelKey, for the Clients that
// wait for its locks (labels.go). One goroutine writes the key beside the first Lock, renews it, and deletes it when the Client is closed.
// If the Redis user lacks the right to write it, later owners are not marked.

const (
	// minLabelExpiry bounds how often a label is written.
	minLabelExpiry = 3 * time.Second
	// writeLabelAgain is the pause after a failure, unless the expiry asks for less.
	writeLabelAgain = time.Second
)

// ownLabel is the label of the Client itself.
type ownLabel struct {
	begun   sync.Once
	refused atomic.Bool // the Redis user lacks the right to write it
}

// labelMark is the mark of all owners of the Client; 0 without a label.
func (c *Engine) labelMark() kinds.Mark {
	if c.Options.Label == "" || c.label.refused.Load() {
		return 0
	}
	return kinds.Labelled
}

// labelExpiry outlasts the leases of a dead Client, except longer fixed ones.
func (c *Engine) labelExpiry() time.Duration {
	return max(2*c.Options.WatchdogTimeout, minLabelExpiry)
}

// ShowLabel begins to keep the label, if there is one, in Redis. It returns at once.
func (c *Engine) ShowLabel() {
	if c.Options.Label == "" {
		return
	}
	c.label.begun.Do(func() { c.inBackground(c.keepLabel) }) // ends with Close
}

func (c *Engine) keepLabel() {
	every := c.labelExpiry() / 3
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-c.Calls.Done():
			c.removeLabel()
			return
		}
		err := c.writeLabel()
		switch {
		case err == nil:
			timer.Reset(every)
		case isForbidden(err):
			c.label.refused.Store(true)
			c.tellOfLabels(err)
			return
		default:
			timer.Reset(min(every, writeLabelAgain))
		}
	}
}

func (c *Engine) writeLabel() error {
	cmd := c.RDB.B().Set().Key(kinds.LabelKey(c.ID)).Value(c.Options.Label).PxMilliseconds(c.labelExpiry().Milliseconds()).Build()
	return c.RDB.Do(c.Calls.Context(context.Background(), time.Now(), 0), cmd).Error()
}

// removeLabel deletes the label. If Redis does not answer, it expires.
func (c *Engine) removeLabel() {
	ctx, cancel := c.Calls.Last()
	defer cancel()
	_ = c.RDB.Do(ctx, c.RDB.B().Del().Key(kinds.LabelKey(c.ID)).Build())
}

// tellOfLabels warns of a missing right, once.
func (c *Engine) tellOfLabels(err error) {
	if !c.labels.told.Swap(true) {
		c.Options.Tell.Warn("rlock: labels do not work for this Client; the user needs the right to read and write the keys "+kinds.LabelKey("*"),
			"client", c.ID, "err", err)
	}
}

// isForbidden reports whether the user lacks a right.
func isForbidden(err error) bool {
	return isRefusal(err) && strings.HasPrefix(err.Error(), "NOPERM")
}
