package rlockcertmagic

import "github.com/go-rlock/rlock/rlock"

// Add is the end of a Lock, whose goroutine may be stopped before it.
func (l *Locker) Add(name string, hold *rlock.Hold) { l.add(name, hold) }
