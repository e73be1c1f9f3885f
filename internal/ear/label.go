package ear

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

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
	text    string // "": none
	begun   sync.Once
	refused atomic.Bool // the Redis user lacks the right to write it
}

// markLabel says that the Client has a label, and begins to keep it in Redis. It returns at once.
func (e *Ear) markLabel() kinds.Capability {
	if e.label.text == "" {
		return 0
	}
	e.label.begun.Do(func() { e.Calls.Background(e.keepLabel) }) // ends with Close
	if e.label.refused.Load() {
		return 0
	}
	return kinds.Labelled
}

// labelExpiry outlasts the leases of a dead Client, except longer fixed ones.
func (e *Ear) labelExpiry() time.Duration {
	return max(2*e.Options.WatchdogTimeout, minLabelExpiry)
}

func (e *Ear) keepLabel() {
	every := e.labelExpiry() / 3
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-e.Calls.Done():
			ctx, cancel := e.Calls.Last()
			_ = e.RDB.Do(ctx, e.RDB.B().Del().Key(kinds.LabelKey(e.ID)).Build()) // if Redis does not answer, it expires
			cancel()
			return
		}
		cmd := e.RDB.B().Set().Key(kinds.LabelKey(e.ID)).Value(e.label.text).PxMilliseconds(e.labelExpiry().Milliseconds()).Build()
		err := e.RDB.Do(e.Calls.Context(context.Background()), cmd).Error()
		switch {
		case err == nil:
			timer.Reset(every)
		case isForbidden(err):
			e.label.refused.Store(true)
			e.tellOfLabels(err)
			return
		default:
			timer.Reset(min(every, writeLabelAgain))
		}
	}
}

func (e *Ear) tellOfLabels(err error) {
	if !e.labels.told.Swap(true) {
		e.Options.Tell.Warn("rlock: labels do not work for this Client; the user needs the right to read and write the keys "+kinds.LabelKey("*"),
			"client", e.ID, "err", err)
	}
}

// isForbidden reports whether the user lacks a right.
func isForbidden(err error) bool {
	var said *rueidis.RedisError
	return errors.As(err, &said) && strings.HasPrefix(said.Error(), "NOPERM")
}
