package tenure

import (
	"runtime/debug"

	"github.com/go-rlock/rlock/internal/calls"
)

// LeaveTo runs f, which unlocks locks the caller cannot use, and waits for it until ctx is done or the limit of an attempt is over.
// Then f continues, and ends as any unlock does; tells gets its panic, if there is one. Close of the given Clients, which must be started,
// waits for it.
func (c Caller) LeaveTo(f func(), tells Teller, clients ...*Client) {
	if !calls.CanLeave(c.Ctx, c.Limit) {
		f()
		return
	}
	for _, c := range clients {
		c.Calls.Also()
	}
	ended, left := make(chan any), make(chan struct{})
	defer close(left)
	go func() { // ends with f
		defer func() {
			for _, c := range clients {
				c.Calls.Ended()
			}
		}()
		defer func() {
			v := recover() // a Trace's panic goes to the caller, if it still waits
			select {
			case ended <- v:
			case <-left:
				if v != nil {
					tells.Panicked(v, debug.Stack())
				}
			}
		}()
		f()
	}()
	over, stop := calls.At(c.Limit)
	defer stop()
	select {
	case v := <-ended:
		if v != nil {
			panic(v)
		}
	case <-c.Ctx.Done():
	case <-over:
	}
}
