package tenure

import "context"

// These interfaces lead to user code. The engine calls a Tracer on the goroutine of its Lock, a Teller on any goroutine; both return at
// once.

// Tracer follows one Lock. Locks without a Trace have none.
type Tracer interface {
	Waits(holder string)              // the Lock begins to wait, for that owner if known; only the first call counts
	Over() <-chan struct{}            // closed when the Lock must stop waiting; nil: never
	Took(Path)                        // how the Lock acquired the lock, unless that follows from the wait
	HandedBy(section context.Context) // the lock was handed over at the end of that section
}

// Path is how a Lock acquired the lock without asking Redis, with the numbers of rlock.Path.
type Path int8

const (
	PathAlone   Path = 1 // downgraded from writer
	PathReentry Path = 2 // the ctx carried a hold of the lock
	PathGrant   Path = 4 // another process handed it over
	PathShared  Path = 6 // joined the readers of this process
	PathIdle    Path = 7 // the process had kept the tenure
	PathAdopted Path = 8 // taken from a ticket
)

// Teller receives a Client's events.
type Teller interface {
	Warn(text string, args ...any)
	Lost(section context.Context, kind string, loss error) // a hold was lost; kind is the name of its lock's kind
	Panicked(v any, stack []byte)                          // a tracer panicked after its caller had left
	Flush()                                                // the Client is closed
}

// About is a lease keeper that can name its lock.
type About interface{ About() (name, kind string) }
