// Package rlockcertmagic locks the work of certmagic (github.com/caddyserver/certmagic) in several processes, so that one of them gets each
// certificate. docs/adapters.md has what certmagic itself does with the locks.
package rlockcertmagic

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"

	"github.com/go-rlock/rlock/rlock"
)

// Locker has the locks of a certmagic.Storage: embed it in one, or give it the data of one with [Locker.In]. It is a certmagic.Locker,
// TryLocker and LockLeaseRenewer, and safe for concurrent use.
type Locker struct {
	client  *rlock.Client
	options []rlock.Option

	mu   sync.Mutex               // guards the following; a hold's are taken under it
	held map[string][]*rlock.Hold // by name: all but one are lost, and one of them may not show that yet
}

var (
	_ certmagic.Locker           = (*Locker)(nil)
	_ certmagic.TryLocker        = (*Locker)(nil)
	_ certmagic.LockLeaseRenewer = (*Locker)(nil)
)

// New returns a Locker. The options are for each lock: with [rlock.WithWatchdog], another process goes on that long after the death of the
// one that had the lock. For certmagic an error of Lock is the end of a certificate, so Lock waits for Redis as for the lock.
func New(client *rlock.Client, options ...rlock.Option) *Locker {
	return &Locker{
		client: client, options: append([]rlock.Option{rlock.WithWaitForRedis()}, options...), held: make(map[string][]*rlock.Hold),
	}
}

// In returns a Storage with the data of s, and these locks.
func (l *Locker) In(s certmagic.Storage) certmagic.Storage { return storage{l, data{s}} }

type storage struct {
	*Locker
	data
}

// data is one level deeper than the Locker, whose methods therefore come before those of the Storage.
type data struct{ certmagic.Storage }

func (l *Locker) mutex(name string) *rlock.Mutex { return l.client.Mutex(name, l.options...) }

// Lock waits until it has the lock, or ctx is done.
func (l *Locker) Lock(ctx context.Context, name string) error {
	hold, err := rlock.Acquire(ctx, l.mutex(name))
	if err == nil {
		l.add(name, hold)
	}
	return err
}

// TryLock makes one attempt.
func (l *Locker) TryLock(ctx context.Context, name string) (bool, error) {
	hold, err := rlock.TryAcquire(ctx, l.mutex(name), 0)
	switch {
	case err == nil:
		l.add(name, hold)
		return true, nil
	case rlock.IsBusy(err):
		return false, ctx.Err()
	}
	return false, err
}

func (l *Locker) add(name string, hold *rlock.Hold) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held[name] = append(l.held[name], hold)
}

// RenewLockLease is called before each attempt to get a certificate. Holds are renewed by themselves. If one was lost, RenewLockLease waits
// for the lock again: then certmagic looks whether another process has got the certificate in the meantime. It does not if another caller of
// this process has the lock by then: certmagic does not say who asks, and that one would wait for itself.
func (l *Locker) RenewLockLease(ctx context.Context, name string, _ time.Duration) error {
	lost := l.takeLost(name)
	if lost == nil {
		return nil
	}
	if err := l.Lock(ctx, name); err != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.held[name] = slices.Insert(l.held[name], 0, lost) // its caller unlocks it
		return err
	}
	return ended(lost)
}

// takeLost takes a hold of that name out of the list, if all are lost: until its caller has another one, the Unlock of others is for theirs.
func (l *Locker) takeLost(name string) *rlock.Hold {
	l.mu.Lock()
	defer l.mu.Unlock()
	if slices.ContainsFunc(l.held[name], func(h *rlock.Hold) bool { return !isLost(h) }) {
		return nil
	}
	return l.take(name)
}

func isLost(h *rlock.Hold) bool { return h.Err() != nil }

// take takes the first hold of that name that is lost out of the list, or the first of all; nil if there is none. The order is that of add: a
// goroutine that was stopped before that comes late, with a hold that is lost. mu is held.
func (l *Locker) take(name string) *rlock.Hold {
	all := l.held[name]
	if len(all) == 0 {
		return nil
	}
	i := max(0, slices.IndexFunc(all, isLost))
	hold := all[i]
	if all = slices.Delete(all, i, i+1); len(all) > 0 {
		l.held[name] = all
	} else {
		delete(l.held, name)
	}
	return hold
}

// Unlock ends one hold of that name, which is the live one only if there is no other: certmagic does not say whose it is. Without one it does
// nothing: certmagic unlocks a name again at its end. A lost lock is free.
func (l *Locker) Unlock(_ context.Context, name string) error {
	l.mu.Lock()
	hold := l.take(name)
	l.mu.Unlock()
	if hold == nil {
		return nil
	}
	return ended(hold)
}

// ended unlocks a hold, which may be lost.
func ended(hold *rlock.Hold) error {
	if err := hold.Unlock(); !errors.Is(err, rlock.ErrNotHeld) {
		return err
	}
	return nil
}
