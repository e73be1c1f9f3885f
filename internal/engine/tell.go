package engine

import "context"

// What the engine calls here is somebody else's code in the end. A tracer is called on the goroutine of the Lock that it is about, a
// teller on any; both return at once.

// Tracer hears what becomes of one Lock. Those that nobody wants to know of have none.
type Tracer interface {
	Waits(holder string)              // the Lock waits from here on, for that owner if it knows of one; only the first call counts
	Over() <-chan struct{}            // closed when the Lock is to stop waiting; nil: never
	Took(Path)                        // how the lock was got, unless that follows from the wait
	HandedBy(section context.Context) // the lock was handed over at the end of that section
}

// Path is how a Lock got the lock without asking Redis for it.
type Path int8

const (
	PathReentry Path = iota // the ctx carried a hold of the lock
	PathGrant               // another process gave it to this one
	PathShared              // beside the readers of this process
	PathAlone               // in place of the writer, which it was
	PathIdle                // it was kept when nobody was inside
	PathAdopted             // it was left to a ticket
)

// Teller hears what happens to the locks of an engine.
type Teller interface {
	Warn(text string, args ...any)
	Lost(section context.Context, kind string, loss error) // a hold was lost; kind is the name of its lock's kind
	Deadlock(ctx context.Context, kind string, err error)  // a Lock that was given that ctx is the victim of one, and waits on
	Panicked(v any, stack []byte)                          // a tracer did, and its caller has gone
	Flush()                                                // the engine is closed
}

// About is a keeper of leases that can say which lock its lease is for.
type About interface{ About() (name, kind string) }
