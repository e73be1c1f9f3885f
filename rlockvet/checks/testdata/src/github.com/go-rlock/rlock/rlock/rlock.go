// Package rlock has the signatures of the real one. TestRealPackage compiles the same test data with that.
package rlock

import (
	"context"
	"time"
)

type UnlockFunc func() error

type Locker interface {
	Name() string
	Lock(ctx context.Context) (context.Context, UnlockFunc, error)
	TryLock(ctx context.Context, wait time.Duration) (context.Context, UnlockFunc, error)
}

type Option interface{ apply() }

func WithLease(time.Duration) Option { return nil }

type Client struct{}

type Options struct {
	Label           string
	WatchdogTimeout time.Duration
	HandOff         HandOff
}

type HandOff struct{ For time.Duration }

func Open(string, Options) (*Client, error) { return nil, nil }

func (*Client) Close()                         {}
func (*Client) Shutdown(context.Context) error { return nil }

func (*Client) FencedMutex(string, ...Option) *Mutex { return nil }
func (*Client) FairMutex(string, ...Option) *Mutex   { return nil }

func (*Client) Mutex(string, ...Option) *Mutex     { return nil }
func (*Client) RWMutex(string, ...Option) *RWMutex { return nil }

func (*Client) Semaphore(string) *Semaphore { return nil }

func (*Client) PermitSemaphore(string, ...Option) *PermitSemaphore { return nil }

type Semaphore struct{}

func (*Semaphore) Acquire(context.Context, int64) error                   { return nil }
func (*Semaphore) TryAcquire(context.Context, int64, time.Duration) error { return nil }
func (*Semaphore) Release(context.Context, int64) error                   { return nil }
func (*Semaphore) Available(context.Context) (int64, error)               { return 0, nil }
func (*Semaphore) Locker(int64) Locker                                    { return nil }

func (*Semaphore) ReleaseIfExists(context.Context, int64) (bool, error) { return false, nil }

func (*Semaphore) Do(context.Context, int64, func(context.Context) error) error { return nil }

type PermitSemaphore struct{}

func (*PermitSemaphore) Acquire(ctx context.Context) (context.Context, *Permit, error) {
	return ctx, nil, nil
}

func (*PermitSemaphore) TryAcquire(ctx context.Context, _ time.Duration) (context.Context, *Permit, error) {
	return ctx, nil, nil
}

func (*PermitSemaphore) Release(context.Context, string) error { return nil }

func (*PermitSemaphore) Do(context.Context, func(context.Context, *Permit) error) error { return nil }

type Permit struct{}

func (*Permit) ID() string     { return "" }
func (*Permit) Slot() int      { return 0 }
func (*Permit) Release() error { return nil }

type Mutex struct{}

func (*Mutex) Name() string { return "" }

func (*Mutex) Lock(ctx context.Context) (context.Context, UnlockFunc, error) { return ctx, nil, nil }

func (*Mutex) TryLock(ctx context.Context, _ time.Duration) (context.Context, UnlockFunc, error) {
	return ctx, nil, nil
}

func (*Mutex) Do(context.Context, func(context.Context) error) error { return nil }

func (*Mutex) TryDo(context.Context, time.Duration, func(context.Context) error) error { return nil }

func (*Mutex) IsLocked(context.Context) (bool, error) { return false, nil }

func (*Mutex) FencingToken(context.Context) (int64, bool) { return 0, false }

type RWMutex struct{}

func (*RWMutex) Read() *Mutex              { return nil }
func (*RWMutex) Write() *Mutex             { return nil }
func (*RWMutex) Upgradeable() *Upgradeable { return nil }

func (*RWMutex) Downgrade(ctx context.Context) (context.Context, UnlockFunc, error) {
	return ctx, nil, nil
}

type Upgradeable struct{ Mutex }

func (*Upgradeable) Upgrade(ctx context.Context) (context.Context, UnlockFunc, error) {
	return ctx, nil, nil
}

func (*Upgradeable) UpgradeDo(context.Context, func(context.Context) error) error { return nil }

type MultiMutex struct{ Mutex }

func All(...Locker) *MultiMutex { return nil }

func DoValue[T any](context.Context, Locker, func(context.Context) (T, error)) (T, error) {
	panic("stub")
}

func TryDoValue[T any](context.Context, Locker, time.Duration, func(context.Context) (T, error)) (T, error) {
	panic("stub")
}

type LeadOption interface{ applyLead() }

func Lead(context.Context, Locker, func(context.Context) error, ...LeadOption) error { return nil }

func WaitOnly(ctx context.Context) context.Context { return ctx }

func Asked(context.Context) <-chan struct{} { return nil }

type ExportOption interface{ applyExport() }

func Export(context.Context, ...ExportOption) (string, error) { return "", nil }

func (*Client) Adopt(ctx context.Context, text string, options ...Option) (context.Context, UnlockFunc, error) {
	return ctx, nil, nil
}

func (*Client) CountDownLatch(string) *CountDownLatch { return nil }

type CountDownLatch struct{}

func (*CountDownLatch) CountDown(context.Context) error               { return nil }
func (*CountDownLatch) Await(context.Context) error                   { return nil }
func (*CountDownLatch) TryAwait(context.Context, time.Duration) error { return nil }

func Detach(ctx context.Context) context.Context { return ctx }

func Owner(context.Context) string { return "" }

func FencingToken(context.Context, string) (int64, bool) { return 0, false }

type LostError struct{ Name string }

func (*LostError) Error() string { return "" }

type NotAcquiredError struct{ Holder string }

func (*NotAcquiredError) Error() string { return "" }

var ErrNotAcquired, ErrLost, ErrNotRun, ErrUnreachable error

func IsBusy(error) bool { return false }

type Hold struct{}

func (*Hold) Asked() <-chan struct{}   { return nil }
func (*Hold) Context() context.Context { return nil }
func (*Hold) Done() <-chan struct{}    { return nil }
func (*Hold) Err() error               { return nil }
func (*Hold) Unlock() error            { return nil }

func Acquire(context.Context, Locker) (*Hold, error) { return nil, nil }

func TryAcquire(context.Context, Locker, time.Duration) (*Hold, error) { return nil, nil }

func WithMaxWait(time.Duration) Option { return nil }
func WithWaitForRedis() Option         { return nil }

func TrustedUntil(context.Context) (time.Time, bool) { return time.Time{}, false }
