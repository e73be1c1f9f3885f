package rlock

import "context"

// What the engine calls here is somebody else's code in the end. A tracer is called on the goroutine of the Lock that it is about, a
// teller on any; both return at once.

// tracer hears what becomes of one Lock. Those that nobody wants to know of have none.
type tracer interface {
	Waits(holder string)              // the Lock waits from here on, for that owner if it knows of one; only the first call counts
	Over() <-chan struct{}            // closed when the Lock is to stop waiting; nil: never
	Took(path)                        // how the lock was got, unless that follows from the wait
	HandedBy(section context.Context) // the lock was handed over at the end of that section
}

// path is how a Lock got the lock without asking Redis for it.
type path int8

const (
	pathReentry path = iota // the ctx carried a hold of the lock
	pathGrant               // another process gave it to this one
	pathShared              // beside the readers of this process
	pathAlone               // in place of the writer, which it was
)

// teller hears what happens to the locks of an engine.
type teller interface {
	Warn(text string, args ...any)
	Lost(section context.Context, kind string, loss error) // a hold was lost; kind is the name of its lock's kind
	Panicked(v any, stack []byte)                          // a tracer did, and its caller has gone
	Flush()                                                // the engine is closed
}

// about is a keeper of leases that can say which lock its lease is for.
type about interface{ About() (name, kind string) }

// waits tells that the Lock waits from here on.
func (c caller) waits(holder string) {
	if c.trace != nil {
		c.trace.Waits(holder)
	}
}

// stopped is closed when the Lock is to stop waiting, though it has time.
func (c caller) stopped() <-chan struct{} {
	if c.trace == nil {
		return nil
	}
	return c.trace.Over()
}

// took tells how the lock was got.
func (c caller) took(p path) {
	if c.trace != nil {
		c.trace.Took(p)
	}
}

// traced ends the section of a level.
func (l *level) traced(end func(*level) error) error {
	if l.released == nil {
		return end(l)
	}
	return l.released(func() error { return end(l) })
}
