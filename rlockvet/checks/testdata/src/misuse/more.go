package misuse

import (
	"context"
	"errors"
	"log"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

// Errors that are wrapped.

func asserted(ctx context.Context, m *rlock.Mutex) bool {
	err := m.Do(ctx, work)
	_, lost := err.(*rlock.LostError) // want `^an error of rlock may be wrapped, and this does not see a wrapped \*rlock\.LostError: use errors\.As$`
	return lost
}

func switched(ctx context.Context, m *rlock.Mutex) string {
	switch err := m.Do(ctx, work).(type) {
	case *rlock.LostError: // want `an error of rlock may be wrapped`
		return err.Name
	}
	return ""
}

// Durations.

const five, half = 5, 30

type config struct{ Seconds, leaseMs, Ns int64 }

func options(ctx context.Context, m *rlock.Mutex, c config) (*rlock.Client, error) {
	_ = m.TryDo(ctx, five, work)                         // want `^five has no unit, so this is 5 ns: multiply it by time\.Second, say$`
	_ = m.TryDo(ctx, time.Duration(c.Seconds), work)     // want `^Seconds becomes a number of ns here: multiply it by its unit$`
	_ = rlock.WithLease(time.Duration(c.leaseMs))        // want `leaseMs becomes a number of ns`
	_ = rlock.WithLease(time.Duration(30))               // want `30 has no unit`
	_ = rlock.Options{HandOff: rlock.HandOff{For: half}} // want `half has no unit`
	o := rlock.Options{WatchdogTimeout: 30}              // want `^30 has no unit, so this is 30 ns`
	o.HandOff.For = 5                                    // want `5 has no unit`
	return rlock.Open("", o)
}

// Tokens.

func put(context.Context, string, ...any) error { return nil }

func unsure(ctx context.Context) error {
	token, _ := rlock.FencingToken(ctx, "f") // want `^the ok of this FencingToken is dropped, and without a hold of that lock token is 0, which a store may accept: check ok$`
	return put(ctx, "t=?", token)
}

func ofAnotherName(ctx context.Context, client *rlock.Client) error {
	return client.FencedMutex("order:1").Do(ctx, func(ctx context.Context) error {
		token, _ := rlock.FencingToken(ctx, "orders:1") // want `the ok of this FencingToken is dropped`
		return put(ctx, "t=?", uint64(token))
	})
}

func ofAnotherLock(ctx context.Context, a, b *rlock.Mutex) error {
	held, unlock, err := a.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	token, _ := b.FencingToken(held) // want `the ok of this FencingToken is dropped`
	return put(held, "t=?", []any{token})
}

func ofAnotherHold(ctx context.Context, a, b *rlock.Mutex) error {
	hold, err := rlock.Acquire(ctx, a)
	if err != nil {
		return err
	}
	defer hold.Unlock()
	token, _ := b.FencingToken(hold.Context()) // want `the ok of this FencingToken is dropped`
	return put(ctx, "t=?", token)
}

func ofADetached(ctx context.Context, m *rlock.Mutex) error {
	return m.Do(ctx, func(ctx context.Context) error {
		alone := rlock.Detach(ctx)
		token, _ := m.FencingToken(alone) // want `the ok of this FencingToken is dropped`
		return put(ctx, "t=?", token)
	})
}

// Clients.

func perCall(ctx context.Context) error {
	client, err := rlock.Open("redis://127.0.0.1:6379", rlock.Options{}) // want `^client is not closed, so its connections and goroutines outlive this function: make one Client for the process, or close it$`
	if err != nil {
		return err
	}
	return client.Mutex("a").Do(ctx, work)
}

// Correct code, without findings.

const lease, none, inNs = 30 * time.Second, 0, 5_000_000_000

func durations(ctx context.Context, m *rlock.Mutex, c config, d time.Duration) {
	_ = m.TryDo(ctx, none, work)
	_ = m.TryDo(ctx, inNs, work)
	_ = m.TryDo(ctx, lease, work)
	_ = m.TryDo(ctx, d, work)
	_ = m.TryDo(ctx, time.Duration(c.Seconds)*time.Second, work)
	_ = m.TryDo(ctx, time.Duration(c.Ns), work)
	_ = rlock.Options{WatchdogTimeout: 0}
}

func as(err error, v any) bool {
	var lost *rlock.LostError
	if errors.As(err, &lost) {
		return true
	}
	switch v.(type) {
	case *rlock.LostError:
		return true
	}
	_, isAny := v.(*rlock.Mutex)
	return isAny
}

func sure(ctx context.Context, client *rlock.Client, m *rlock.Mutex, name string) error {
	err := m.Do(ctx, func(ctx context.Context) error {
		token, _ := m.FencingToken(ctx)
		return put(ctx, "t=?", token)
	})
	held, unlock, err2 := client.FencedMutex(name).Lock(ctx)
	if err2 != nil {
		return err2
	}
	defer unlock()
	one, _ := rlock.FencingToken(held, name)
	two, ok := rlock.FencingToken(ctx, "f")
	if !ok {
		return errors.New("no token")
	}
	three, _ := rlock.FencingToken(ctx, "g")
	log.Print(three)
	four, _ := rlock.FencingToken(ctx, "h")
	if four == 0 {
		return errors.New("no token")
	}
	return errors.Join(err, put(held, "t=?", one, two, four))
}

func sureWithAHold(ctx context.Context, client *rlock.Client, m *rlock.Mutex) error {
	hold, err := rlock.Acquire(ctx, m)
	if err != nil {
		return err
	}
	defer hold.Unlock()
	one, _ := m.FencingToken(hold.Context())
	other, err := rlock.TryAcquire(ctx, client.FencedMutex("f"), 0)
	if err != nil {
		return err
	}
	defer other.Unlock()
	held := other.Context()
	two, _ := rlock.FencingToken(held, "f")
	return put(ctx, "t=?", one, two)
}

func sureOfADerived(ctx context.Context, m *rlock.Mutex) error {
	return m.Do(ctx, func(ctx context.Context) error {
		short, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		token, _ := m.FencingToken(short)
		return put(ctx, "t=?", token)
	})
}

func closed(ctx context.Context) error {
	client, err := rlock.Open("", rlock.Options{})
	if err != nil {
		return err
	}
	defer client.Close()
	return client.Mutex("a").Do(ctx, work)
}

func kept() (*rlock.Mutex, error) {
	client, err := rlock.Open("", rlock.Options{})
	if err != nil {
		return nil, err
	}
	return client.Mutex("a"), nil
}
