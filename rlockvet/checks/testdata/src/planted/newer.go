package planted

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

// Thirty more, of a service that keeps devices' sessions.
type devices struct {
	shop

	holds   map[string]*rlock.Hold
	unlocks map[string]rlock.UnlockFunc
	ttl     int
}

// Q01: the hold of a session is forgotten when the handshake fails.
func (d *devices) q01(ctx context.Context, id string) error {
	hold, err := rlock.Acquire(ctx, d.locks.Mutex("device:"+id)) // want `hold\.Unlock is not called on every path`
	if err != nil {
		return err
	}
	if err := d.charge(hold.Context(), id); err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	d.holds[id] = hold
	return nil
}

// Q02: the error of TryAcquire is dropped, so a busy device ends in a nil pointer.
func (d *devices) q02(ctx context.Context, id string) {
	hold, _ := rlock.TryAcquire(ctx, d.locks.Mutex("device:"+id), time.Second) // want `the error of this TryAcquire is dropped`
	defer hold.Unlock()
	log.Print(d.charge(hold.Context(), id))
}

// Q03: the Unlock is deferred before the error is checked.
func (d *devices) q03(ctx context.Context, id string) error {
	hold, err := rlock.Acquire(ctx, d.locks.FairMutex("device:"+id)) // want `hold is used`
	defer func() { log.Print(hold.Unlock()) }()
	if err != nil {
		return err
	}
	return d.charge(hold.Context(), id)
}

// Q04: a hold without a name.
func (d *devices) q04(ctx context.Context) error {
	if _, err := rlock.Acquire(ctx, d.locks.Mutex("warm-up")); err != nil { // want `the hold of this Acquire is dropped`
		return err
	}
	return d.charge(ctx, "warm-up")
}

// Q05: every failure but a busy lock counts as success.
func (d *devices) q05(ctx context.Context, id string) string {
	err := d.locks.Mutex("device:"+id).TryDo(ctx, time.Second, func(ctx context.Context) error { return d.charge(ctx, id) }) // want `err is only compared with ErrNotAcquired \(by IsBusy\) after this TryDo`
	if rlock.IsBusy(err) {
		return "busy"
	}
	return "done"
}

// Q06: the section begins although Redis may not have answered.
func (d *devices) q06(ctx context.Context, id string) error {
	ctx, unlock, err := d.locks.Mutex("device:"+id).TryLock(ctx, 0) // want `err may be another error when the section begins`
	if rlock.IsBusy(err) {
		return errors.New("busy")
	}
	defer func() { _ = unlock() }()
	return d.charge(ctx, id)
}

// Q07: the unlock's error is taken for that of the Lock.
func (d *devices) q07(ctx context.Context, id string) (busy bool, err error) {
	held, unlock, err := d.locks.Mutex("device:" + id).Lock(ctx)
	if err != nil {
		return false, err
	}
	err = d.charge(held, id)
	defer unlock()
	return rlock.IsBusy(unlock()), err // want `IsBusy is false for what unlock\(\) returns`
}

// Q08: an option that a single attempt ignores.
func (d *devices) q08(ctx context.Context, id string) error {
	return d.locks.Mutex("device:"+id, rlock.WithWaitForRedis()).TryDo(ctx, 0, func(ctx context.Context) error { return d.charge(ctx, id) }) // want `WithWaitForRedis has no effect`
}

// Q09: two bounds on one wait.
func (d *devices) q09(ctx context.Context, id string) error {
	lock := d.locks.FairMutex("device:"+id, rlock.WithMaxWait(time.Minute)) // want `WithMaxWait bounds Lock and Do; this TryLock`
	held, unlock, err := lock.TryLock(ctx, time.Second)
	if err != nil {
		return err
	}
	defer func() { _ = unlock() }()
	return d.charge(held, id)
}

// Q10: an Acquire inside of the lock's own section never gets it.
func (d *devices) q10(ctx context.Context, id string) error {
	lock := d.locks.Mutex("device:" + id)
	held, unlock, err := lock.Lock(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = unlock() }()
	hold, err := rlock.Acquire(held, lock) // want `Acquire never re\-enters`
	if err != nil {
		return err
	}
	d.holds[id] = hold
	return nil
}

// Q11: the section of a hold goes on after a loss.
func (d *devices) q11(ctx context.Context, id string) error {
	hold, err := rlock.Acquire(ctx, d.locks.Mutex("device:"+id))
	if err != nil {
		return err
	}
	defer func() { _ = hold.Unlock() }()
	return d.charge(ctx, id) // want `ctx is from before the Acquire`
}

// Q12: the hold's ctx is used after its Unlock.
func (d *devices) q12(ctx context.Context, id string) error {
	hold, err := rlock.Acquire(ctx, d.locks.Mutex("device:"+id))
	if err != nil {
		return err
	}
	held := hold.Context()
	if err := errors.Join(d.charge(held, id), hold.Unlock()); err != nil {
		return err
	}
	return d.store(held, order{id}, 1) // want `held was cancelled by the unlock of the Acquire`
}

// Q13: the next round's Acquire overwrites the hold.
func (d *devices) q13(ctx context.Context, ids []string) error {
	var hold *rlock.Hold
	for _, id := range ids {
		var err error
		hold, err = rlock.Acquire(ctx, d.locks.Mutex("device:"+id)) // want `hold is overwritten`
		if err != nil {
			return err
		}
		log.Print(d.charge(hold.Context(), id))
	}
	return hold.Unlock()
}

// Q14: an old hold is replaced in a map, and nobody can unlock it any more. Not found: what a map holds is out of sight.
func (d *devices) q14(ctx context.Context, id string) (err error) {
	d.holds[id], err = rlock.Acquire(ctx, d.locks.Mutex("device:"+id))
	return err
}

// Q15: os.Exit in the section of a hold.
func (d *devices) q15(ctx context.Context, id string) {
	hold, err := rlock.Acquire(ctx, d.locks.Mutex("device:"+id))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = hold.Unlock() }()
	if err := d.charge(hold.Context(), id); err != nil {
		log.Print(err)
		os.Exit(1) // want `os\.Exit calls no deferred function`
	}
}

// Q16: a panic in the section of a hold leaves it held.
func (d *devices) q16(w http.ResponseWriter, r *http.Request) {
	hold, err := rlock.TryAcquire(r.Context(), d.locks.Mutex(r.PathValue("id")), time.Second) // want `hold\.Unlock is not deferred`
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	d.render(w, r)
	_ = hold.Unlock()
}

func (d *devices) render(http.ResponseWriter, *http.Request) {}

// Q17: TryAcquire's wait without a unit.
func (d *devices) q17(ctx context.Context, id string) (*rlock.Hold, error) {
	return rlock.TryAcquire(ctx, d.locks.Mutex("device:"+id), 30) // want `30 has no unit`
}

// Q18: seconds from a field become ns.
func (d *devices) q18(id string, ttlSeconds int) *rlock.Mutex {
	return d.locks.Mutex("device:"+id, rlock.WithLease(time.Duration(ttlSeconds))) // want `ttlSeconds becomes a number of ns here`
}

// Q19: the trust is asked for by the outer ctx.
func (d *devices) q19(outer context.Context, id string) error {
	return d.locks.Mutex("device:"+id).Do(outer, func(context.Context) error {
		if until, ok := rlock.TrustedUntil(outer); !ok || time.Until(until) < time.Second { // want `outer is from outside of this Do`
			return errors.New("too late")
		}
		return nil
	})
}

// Q20: the ctx of the section is shadowed back by an inner block.
func (d *devices) q20(ctx context.Context, id string, fast bool) (err error) {
	var unlock rlock.UnlockFunc
	if fast {
		ctx, unlock, err := d.locks.Mutex("device:"+id).TryLock(ctx, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unlock() }()
		return d.charge(ctx, id)
	}
	_, unlock, err = d.locks.Mutex("device:" + id).Lock(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = unlock() }()
	return d.charge(ctx, id) // want `ctx is from before the Lock`
}

// Q21: unlock is called in a goroutine's deferred call, the Lock in its caller; a return between them leaves it.
func (d *devices) q21(ctx context.Context, id string) error {
	held, unlock, err := d.locks.Mutex("device:" + id).Lock(ctx) // want `unlock is not called on every path`
	if err != nil {
		return err
	}
	if d.ttl == 0 {
		return errors.New("no ttl")
	}
	go func() {
		defer func() { _ = unlock() }()
		log.Print(d.charge(held, id))
	}()
	return nil
}

// Q22: the error of a TryLock decides by == nil, and the section runs on both sides.
func (d *devices) q22(ctx context.Context, id string) {
	held, unlock, err := d.locks.Mutex("device:"+id).TryLock(ctx, time.Second) // want `err is only logged after this TryLock`
	if err != nil {
		log.Printf("goes on without the lock of %s: %v", id, err)
	}
	defer func() { _ = unlock() }()
	_ = d.charge(held, id)
}

// Q23: an error of rlock compared in a switch.
func (d *devices) q23(ctx context.Context, id string) int {
	switch err := d.locks.Mutex("device:"+id).Do(ctx, func(ctx context.Context) error { return d.charge(ctx, id) }); err {
	case nil:
		return http.StatusOK
	case rlock.ErrUnreachable: // want `no error is equal to rlock\.ErrUnreachable`
		return http.StatusBadGateway
	default:
		return http.StatusInternalServerError
	}
}

// Q24: Redis's answer about the lock replaces the lock. Not found: whether a Lock follows elsewhere is out of sight.
func (d *devices) q24(ctx context.Context, id string) bool {
	held, err := d.locks.Mutex("device:" + id).IsLocked(ctx)
	return err == nil && !held
}

// Q25: a hold is returned together with an error, and the caller drops it then.
func (d *devices) open(ctx context.Context, id string) (*rlock.Hold, error) {
	hold, err := rlock.Acquire(ctx, d.locks.Mutex("device:"+id))
	if err != nil {
		return nil, err
	}
	return hold, d.charge(hold.Context(), id)
}

func (d *devices) q25(ctx context.Context, id string) error {
	hold, err := d.open(ctx, id) // want `hold\.Unlock is not called on every path`
	if err != nil {
		return err
	}
	return d.charge(hold.Context(), strconv.Itoa(d.ttl))
}

// Q26: the permit is asked for, and its Release is deferred in the arguments of a log.
func (d *devices) q26(ctx context.Context) error {
	held, permit, err := d.locks.PermitSemaphore("pool").Acquire(ctx)
	if err != nil {
		return err
	}
	defer log.Println("released:", permit.Release()) // want `permit\.Release is called at once`
	return d.charge(held, "pool")
}

// Q27: the write side is locked in the section of a hold of the read side. Not found: the hold's ctx, and so its section, may go anywhere.
func (d *devices) q27(ctx context.Context) error {
	rw := d.locks.RWMutex("prices")
	hold, err := rlock.Acquire(ctx, rw.Read())
	if err != nil {
		return err
	}
	defer func() { _ = hold.Unlock() }()
	return rw.Write().Do(hold.Context(), func(ctx context.Context) error { return d.charge(ctx, "prices") })
}

// Q28: errors.As by a type assertion, on the error of an Acquire.
func (d *devices) q28(ctx context.Context, id string) string {
	hold, err := rlock.Acquire(ctx, d.locks.Mutex("device:"+id))
	if busy, ok := err.(*rlock.NotAcquiredError); ok { // want `an error of rlock may be wrapped`
		return busy.Holder
	}
	if err != nil {
		return ""
	}
	d.holds[id] = hold
	return "us"
}

// Q29: the unlock is stored under a key that another Lock overwrites. Not found: what a map holds is out of sight.
func (d *devices) q29(ctx context.Context, ids []string) error {
	for _, id := range ids {
		_, unlock, err := d.locks.Mutex("device:" + id).Lock(ctx)
		if err != nil {
			return err
		}
		d.unlocks["device"] = unlock
	}
	return nil
}

// Q30: a Client of a request's own, that a return leaves open.
func (d *devices) q30(w http.ResponseWriter, r *http.Request) {
	locks, err := rlock.Open("redis://127.0.0.1:6379", rlock.Options{Label: "request"}) // want `locks is not closed`
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	err = locks.Mutex(r.PathValue("id")).Do(r.Context(), func(ctx context.Context) error { return d.charge(ctx, r.PathValue("id")) })
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	}
}
