package pubsub

import (
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/require"
)

// Waiters in the queue when draining begins, or joining later, get an error. A waiter that goes ahead keeps waiting and can be woken.
func TestDrain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newManualHub(t)
		ws := d.line(2)
		d.hub.Drain()
		requireClosed(t, ws...)
		late, ahead := &Waiter{}, &Waiter{Ahead: true}
		require.True(t, d.hub.Join(late, queue(d.ch)))
		late.Held(time.Hour, false)
		requireClosed(t, late)
		require.True(t, d.hub.Join(ahead, queue(d.ch)))
		for _, w := range append(ws, late) {
			w.Leave()
		}
		ahead.Held(time.Hour, false)
		require.Equal(t, noOp, d.take(), "it needs the subscription")
		d.hub.message(d.ch, "0")
		require.Len(t, ahead.turn, 1)
		<-ahead.turn
		require.NoError(t, refusal(ahead))
		ahead.Done(time.Hour)
		d.unsubscribes("it does not linger")
	})
}

// Draining ends a lingering subscription before its time.
func TestDrainEndsWhatLingers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newManualHub(t)
		d.line(1)[0].Done(time.Hour)
		require.Equal(t, noOp, d.take())
		d.hub.Drain()
		d.unsubscribes()
	})
}

// A waiter that goes ahead may be the first subscriber.
func TestDrainLetsSubscribe(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newManualHub(t)
		d.hub.Drain()
		ahead := d.joins(&Waiter{Ahead: true}, true)
		ahead.Held(-1, false)
		require.Equal(t, subscribing, d.take())
		d.confirm("subscribe")
		require.Len(t, ahead.turn, 1)
		d.hub.Stop()
		ahead.Held(-1, false)
		require.ErrorIs(t, refusal(ahead), ErrClosed)
		ahead.Leave()
	})
}
