package quorum

import (
	"errors"
	"reflect"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
)

var errGaveUp = errors.New("the caller's time is over")

// The end of a sleep that none of the cases explains.
const (
	timeUp = -1 - iota // until
	gaveUp             // ctx, the end of the waiting, or too many Clients are closed
)

// sleep returns the index of the first of the cases that is ready.
func (e *election) sleep(until time.Time, cases ...reflect.SelectCase) int {
	bounded := e.Wait.IsZero() || !until.IsZero() && until.Before(e.Wait)
	if !bounded {
		until = e.Wait
	}
	i := e.sleepBeyondWait(until, cases...)
	if i == timeUp && !bounded {
		return gaveUp
	}
	return i
}

// sleepBeyondWait is sleep for a round that is under way, which e.limit bounds.
func (e *election) sleepBeyondWait(until time.Time, cases ...reflect.SelectCase) int {
	over, stop := calls.At(until)
	defer stop()
	for {
		if e.quorum.isShut() {
			return gaveUp
		}
		all := append([]reflect.SelectCase{ready(e.Ctx.Done()), ready(e.Stopped()), {Dir: reflect.SelectRecv, Chan: reflect.ValueOf(over)}}, cases...)
		for _, m := range e.quorum.Members {
			if !m.Client.IsShut() {
				all = append(all, ready(m.Client.Shut))
			}
		}
		switch i, _, _ := reflect.Select(all); {
		case i < 2:
			return gaveUp
		case i == 2:
			return timeUp
		case i < 3+len(cases):
			return i - 3
		}
	}
}

func ready(c <-chan struct{}) reflect.SelectCase {
	return reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(c)}
}
