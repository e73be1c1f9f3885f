// Package planted has thirty mistakes of one shop, and thirty of another, each in a function of its own. Those that no analyzer finds say why.
package planted

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

type shop struct {
	locks *rlock.Client
	db    *sql.DB
	base  context.Context
	wait  struct{ Seconds int }
	last  context.Context
}

type order struct{ id string }

func (s *shop) charge(ctx context.Context, id string) error {
	_, err := s.db.ExecContext(ctx, "UPDATE orders SET charged = true WHERE id = ?", id)
	return err
}

// P01: the wait comes from a configuration in seconds.
func (s *shop) p01(ctx context.Context) error {
	return s.locks.Mutex("a").TryDo(ctx, time.Duration(s.wait.Seconds), func(ctx context.Context) error { return s.charge(ctx, "1") }) // want `Seconds becomes a number of ns here`
}

// P02: a watchdog time without a unit, from a constant.
func p02(url string) (*rlock.Client, error) {
	const watchdogTime = 10
	o := rlock.Options{}
	o.WatchdogTimeout = watchdogTime // want `watchdogTime has no unit`
	return rlock.Open(url, o)
}

// P03: a type switch on the error of TryLock's wrapper.
func (s *shop) p03(ctx context.Context) int {
	err := s.locks.Mutex("a").TryDo(ctx, 0, func(ctx context.Context) error { return s.charge(ctx, "1") })
	switch e := err.(type) {
	case nil:
		return http.StatusOK
	case *rlock.NotAcquiredError: // want `an error of rlock may be wrapped`
		log.Print(e.Holder)
		return http.StatusConflict
	default:
		return http.StatusInternalServerError
	}
}

// P04: the sentinel compared with != in a condition of a loop.
func (s *shop) p04(ctx context.Context) error {
	err := error(rlock.ErrNotAcquired)
	for i := 0; i < 3 && err != rlock.ErrNotRun; i++ { // want `no error is equal to rlock\.ErrNotRun`
		err = s.locks.Mutex("a").TryDo(ctx, time.Second, func(ctx context.Context) error { return s.charge(ctx, "1") })
	}
	return err
}

// P05: a report is made of a value whose Lock may have failed.
func (s *shop) p05(ctx context.Context) string {
	total, _ := rlock.TryDoValue(ctx, s.locks.FairMutex("total"), time.Second, func(ctx context.Context) (float64, error) { // want `the error of this TryDoValue is dropped`
		return 1, s.charge(ctx, "1")
	})
	return fmt.Sprintf("%.2f", total)
}

// P06: every error but a busy lock ends in "done".
func (s *shop) p06(w http.ResponseWriter, r *http.Request) {
	err := s.locks.Mutex("a").TryDo(r.Context(), 0, func(ctx context.Context) error { return s.charge(ctx, "1") }) // want `err is only compared with \*rlock\.NotAcquiredError after this TryDo`
	var busy *rlock.NotAcquiredError
	if errors.As(err, &busy) {
		http.Error(w, "busy: "+busy.Holder, http.StatusConflict)
		return
	}
	fmt.Fprint(w, "done")
}

// P07: the error of TryLock is overwritten by that of the section.
func (s *shop) p07(ctx context.Context) (err error) {
	held, unlock, err := s.locks.Mutex("a").TryLock(ctx, time.Second) // want `err is not looked at after this TryLock`
	defer func() { _ = unlock() }()
	if err = s.charge(held, "1"); err != nil {
		return err
	}
	return nil
}

// P08: a ctx that somebody was to replace.
func (s *shop) p08(ctx context.Context) error {
	return s.locks.RWMutex("stock").Write().Do(ctx, func(ctx context.Context) error {
		return s.charge(context.TODO(), "1") // want `context\.TODO\(\) in the section of this Do does not end when the lock is lost`
	})
}

// P09: a timeout is derived from the outer ctx in the section.
func (s *shop) p09(outer context.Context) error {
	return s.locks.Mutex("a").Do(outer, func(ctx context.Context) error {
		short, cancel := context.WithTimeout(outer, time.Second) // want `outer is from outside of this Do`
		defer cancel()
		return s.charge(short, "1")
	})
}

// P10: the token is asked for by the outer ctx, through the handle.
func (s *shop) p10(ctx context.Context, o order) error {
	m := s.locks.FencedMutex("order:" + o.id)
	held, unlock, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = unlock() }()
	token, ok := m.FencingToken(ctx) // want `ctx is from before the Lock in line \d+`
	if !ok {
		return errors.New("no token")
	}
	_, err = s.db.ExecContext(held, "UPDATE orders SET token = ?", token)
	return err
}

// P11: the token is asked for under the name of the order, but the lock has a prefix.
func (s *shop) p11(ctx context.Context, o order) error {
	return s.locks.FencedMutex("order:"+o.id).Do(ctx, func(ctx context.Context) error {
		token, _ := rlock.FencingToken(ctx, o.id) // want `the ok of this FencingToken is dropped`
		return s.store(ctx, o, token)
	})
}

func (s *shop) store(ctx context.Context, o order, token int64) error {
	_, err := s.db.ExecContext(ctx, "UPDATE orders SET token = ? WHERE id = ? AND token < ?", token, o.id, token)
	return err
}

// P12: a writer is locked in the section of a reader, by Lock and unlock.
func (s *shop) p12(ctx context.Context) (err error) {
	rw := s.locks.RWMutex("prices")
	reading, unlock, err := rw.Read().Lock(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	if err := s.charge(reading, "1"); err != nil {
		return err
	}
	return rw.Write().TryDo(reading, time.Second, func(ctx context.Context) error { return s.charge(ctx, "2") }) // want `a reader cannot become the writer`
}

// P13: a lock per item, all of them kept until the function ends.
func (s *shop) p13(ctx context.Context, all []order) error {
	for _, o := range all {
		held, unlock, err := s.locks.Mutex("order:" + o.id).Lock(ctx) // want `unlock is deferred in a loop`
		if err != nil {
			return err
		}
		defer func() { _ = unlock() }()
		if err := s.charge(held, o.id); err != nil {
			return err
		}
	}
	return nil
}

// P14: continue in a loop leaves the lock behind.
func (s *shop) p14(ctx context.Context, all []order) error {
	for _, o := range all {
		held, unlock, err := s.locks.Mutex("order:"+o.id).TryLock(ctx, 0) // want `unlock is not called on every path`
		if err != nil {
			return err
		}
		if o.id == "" {
			continue
		}
		if err := errors.Join(s.charge(held, o.id), unlock()); err != nil {
			return err
		}
	}
	return nil
}

// P15: the permit of a pool is not given back if the work fails.
func (s *shop) p15(ctx context.Context) error {
	held, permit, err := s.locks.PermitSemaphore("pool").TryAcquire(ctx, time.Second) // want `permit\.Release is not called on every path`
	if err != nil {
		return err
	}
	if err := s.charge(held, fmt.Sprint(permit.Slot())); err != nil {
		return err
	}
	return permit.Release()
}

// P16: permits are given back although they may not have been taken.
func (s *shop) p16(ctx context.Context) error {
	pool := s.locks.Semaphore("pool")
	err := pool.TryAcquire(ctx, 2, time.Second) // want `the permits are given back in line \d+ although this TryAcquire may have failed`
	defer func() { _ = pool.Release(ctx, 2) }()
	if err != nil {
		return err
	}
	return s.charge(ctx, "1")
}

// P17: the unlock is an argument of a deferred logger.
func (s *shop) p17(ctx context.Context) error {
	held, unlock, err := s.locks.Mutex("a").Lock(ctx)
	if err != nil {
		return err
	}
	defer log.Printf("unlocked: %v", unlock()) // want `unlock is called at once`
	return s.charge(held, "1")
}

// P18: the program ends in the middle of a section that a switch chose.
func (s *shop) p18(ctx context.Context, step string) error {
	return s.locks.Mutex("migrate").Do(ctx, func(ctx context.Context) error {
		switch step {
		case "up":
			return s.charge(ctx, "up")
		default:
			log.Printf("no step %q", step)
			os.Exit(2) // want `os\.Exit calls no deferred function`
		}
		return nil
	})
}

// P19: a transaction is committed after the lock is gone.
func (s *shop) p19(ctx context.Context) (err error) {
	tx, err := s.db.Begin()
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, tx.Rollback())
			return
		}
		err = tx.Commit() // want `this runs after the unlock in line \d+`
	}()
	held, unlock, err := s.locks.Mutex("a").Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	_, err = tx.ExecContext(held, "UPDATE stock SET n = n - 1")
	return err
}

// P20: an audit line is written in a deferred call that runs after the unlock.
func (s *shop) p20(ctx context.Context) error {
	held, unlock, err := s.locks.Mutex("a").Lock(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if _, err := s.db.ExecContext(held, "INSERT INTO audit VALUES (1)"); err != nil { // want `held is cancelled by then`
			log.Print(err)
		}
	}()
	defer unlock()
	return s.charge(held, "1")
}

// P21: the goroutines of a fan-out outlive the section that starts them.
func (s *shop) p21(ctx context.Context, all []order) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	return s.locks.Mutex("all").Do(ctx, func(ctx context.Context) error {
		for _, o := range all {
			wg.Add(1)
			go func() {
				defer wg.Done()
				if err := s.charge(ctx, o.id); err != nil { // want `ctx is cancelled as soon as this goroutine has begun`
					log.Print(err)
				}
			}()
		}
		return nil
	})
}

// P22: the section's ctx is used after its end, below a value.
func (s *shop) p22(ctx context.Context) error {
	held, unlock, err := s.locks.Mutex("a").Lock(ctx) // want `unlock is not deferred`
	if err != nil {
		return err
	}
	tagged := context.WithValue(held, order{}, "1")
	if err := s.charge(tagged, "1"); err != nil {
		return errors.Join(err, unlock())
	}
	if err := unlock(); err != nil {
		return err
	}
	return s.charge(tagged, "2") // want `tagged was cancelled by the unlock of the Lock in line \d+`
}

// P23: the section's ctx becomes that of later requests. Not found: the field may be read by what the section calls.
func (s *shop) p23(ctx context.Context) error {
	held, unlock, err := s.locks.Mutex("a").Lock(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = unlock() }()
	s.last = held
	return s.charge(held, "1")
}

// P24: a Client for each message, left open.
func (s *shop) p24(ctx context.Context, url string, messages <-chan order) error {
	for o := range messages {
		locks, err := rlock.Open(url, rlock.Options{Label: "consumer"}) // want `locks is not closed`
		if err != nil {
			return err
		}
		if err := locks.Mutex("order:"+o.id).Do(ctx, func(ctx context.Context) error { return s.charge(ctx, o.id) }); err != nil {
			return err
		}
	}
	return nil
}

// P25: the same lock again, in its own section, under a ctx that knows nothing of it.
func (s *shop) p25(ctx context.Context) (int, error) {
	total := s.locks.Mutex("total")
	return rlock.DoValue(ctx, total, func(context.Context) (int, error) {
		return rlock.DoValue(ctx, total, func(context.Context) (int, error) { return 1, nil }) // want `ctx is from outside of this DoValue`
	})
}

// P26: the helper's unlock is forgotten on one path.
func (s *shop) begin(ctx context.Context) (context.Context, func() error, error) {
	held, unlock, err := s.locks.Mutex("begin").Lock(ctx)
	if err != nil {
		return nil, nil, err
	}
	return held, unlock, nil
}

func (s *shop) p26(ctx context.Context, ids []string) error {
	held, end, err := s.begin(ctx) // want `end is not called on every path`
	if err != nil {
		return err
	}
	if len(ids) == 0 {
		return nil
	}
	return errors.Join(s.charge(held, ids[0]), end())
}

// P27: the latch's error is dropped, so nobody waits if Redis fails.
func (s *shop) p27(ctx context.Context) error {
	s.locks.CountDownLatch("ready").TryAwait(ctx, time.Minute) // want `the error of this TryAwait is dropped`
	return s.charge(ctx, "1")
}

// P28: two locks in opposite orders. Not found: other orders are mostly in other functions, and found by Options.Deadlock and LockOrder.
func (s *shop) p28(ctx context.Context) error {
	a, b := s.locks.Mutex("a"), s.locks.Mutex("b")
	err := a.Do(ctx, func(ctx context.Context) error {
		return b.Do(ctx, func(ctx context.Context) error { return s.charge(ctx, "1") })
	})
	return errors.Join(err, b.Do(ctx, func(ctx context.Context) error {
		return a.Do(ctx, func(ctx context.Context) error { return s.charge(ctx, "2") })
	}))
}

// P29: the check is made before the lock is taken. Not found: only the author knows what the lock protects.
func (s *shop) p29(ctx context.Context) error {
	var charged bool
	if err := s.db.QueryRowContext(ctx, "SELECT charged FROM orders").Scan(&charged); err != nil || charged {
		return err
	}
	return s.locks.Mutex("a").Do(ctx, func(ctx context.Context) error { return s.charge(ctx, "1") })
}

// P30: IsLocked as if it were a TryLock. Not found: whether a Lock follows elsewhere is out of sight.
func (s *shop) p30(ctx context.Context) error {
	if locked, err := s.locks.Mutex("a").IsLocked(ctx); err != nil || locked {
		return err
	}
	return s.charge(ctx, "1")
}
