package rlocktest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/rlock"
	"github.com/go-rlock/rlock/rlocktest"
)

// The functions of docs/recipes.md, in the page's order.

// oneAtATime runs work unless another process works on that name for 5 s.
func oneAtATime(ctx context.Context, client *rlock.Client, name string, work func(context.Context) error) error {
	err := client.Mutex(name).TryDo(ctx, 5*time.Second, work)
	switch {
	case errors.Is(err, rlock.ErrNotRun):
		return fmt.Errorf("nothing was done: %w", err)
	case errors.Is(err, rlock.ErrLost):
		return fmt.Errorf("another process may have been inside as well: %w", err)
	}
	return err // from work, or from the unlock
}

// oncePerTick runs the job of a tick in one process. In the others it returns nil at once, even if they are up to a minute late.
func oncePerTick(ctx context.Context, client *rlock.Client, name string, tick time.Time, job func(context.Context) error) error {
	lock := client.Mutex(name+":"+tick.UTC().Format(time.RFC3339), rlock.WithMinHold(time.Minute))
	err := lock.TryDo(ctx, 0, job)
	if errors.Is(err, rlock.ErrNotRun) && rlock.IsBusy(err) {
		return nil // another process has this tick
	}
	return err
}

// lead works until ctx is done: at the shutdown, or because another process may lead.
func lead(ctx context.Context, work func()) error {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			work()
		case <-ctx.Done():
			return nil
		}
	}
}

// atMost runs work when fewer than n others do. The slot is from 0 to n-1, and its own.
func atMost(ctx context.Context, client *rlock.Client, name string, n int64, work func(ctx context.Context, slot int) error) error {
	permits := client.PermitSemaphore(name)
	if _, err := permits.TrySetPermits(ctx, n); err != nil { // the first call counts, or the first after Redis lost its data
		return err
	}
	return permits.Do(ctx, func(ctx context.Context, p *rlock.Permit) error { return work(ctx, p.Slot()) })
}

// migrateOnce returns nil when the database is migrated, by this process or another one.
func migrateOnce(ctx context.Context, client *rlock.Client, pending func(context.Context) (bool, error), migrate func(context.Context) error) error {
	return client.Mutex("migration").Do(ctx, func(ctx context.Context) error {
		if more, err := pending(ctx); err != nil || !more {
			return err
		}
		return migrate(ctx)
	})
}

// shipAsJava does what the Java code does, beside it.
func shipAsJava(ctx context.Context, client *rlock.Client, name string, ship func(context.Context) error) (err error) {
	ctx, unlock, err := client.Mutex(name).TryLock(ctx, 5*time.Second)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	return ship(ctx)
}

// once returns a job that runs in one process at each tick, and is stopped if the lock is lost.
func once(ctx context.Context, lock *rlock.Mutex, job func(context.Context) error) func() {
	return func() {
		err := lock.TryDo(ctx, 0, job)
		if errors.Is(err, rlock.ErrNotRun) && rlock.IsBusy(err) {
			return // another process runs it
		}
		if err != nil {
			log.Print(lock.Name(), ": ", err)
		}
	}
}

// log has what once logs.
var log recipeLog

type recipeLog struct{ lines []string }

func (l *recipeLog) Print(v ...any) { l.lines = append(l.lines, fmt.Sprint(v...)) }

// untilLost is work that stops when its ctx does.
func untilLost(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func never(context.Context) error { return errors.New("it ran") }

// The failures in the lists of docs/recipes.md.
func TestRecipes(t *testing.T) {
	within := func(t *testing.T, began time.Time, atMost time.Duration) {
		t.Helper()
		require.LessOrEqual(t, time.Since(began), atMost)
	}
	for _, c := range []struct {
		name string
		test func(t *testing.T, locks *rlocktest.Client)
	}{
		{"one order: busy, unreachable, lost, dead", func(t *testing.T, locks *rlocktest.Client) {
			ctx, did := t.Context(), false
			work := func(ctx context.Context) error {
				did = true
				locks.AssertHeld(ctx, "order:42")
				return nil
			}
			require.NoError(t, oneAtATime(ctx, locks.Client, "order:42", work))
			require.True(t, did)

			release := locks.HoldElsewhere("order:42")
			began := time.Now()
			err := oneAtATime(ctx, locks.Client, "order:42", never)
			require.ErrorIs(t, err, rlock.ErrNotRun)
			require.ErrorIs(t, err, rlock.ErrNotAcquired)
			require.NotErrorIs(t, err, rlock.ErrUnreachable)
			require.Equal(t, 5*time.Second, time.Since(began))
			release()

			restore := locks.FailRedis()
			err = oneAtATime(ctx, locks.Client, "order:42", never)
			require.ErrorIs(t, err, rlock.ErrNotRun)
			require.ErrorIs(t, err, rlock.ErrUnreachable)
			restore()

			err = oneAtATime(ctx, locks.Client, "order:42", func(ctx context.Context) error {
				locks.Lose("order:42")
				return untilLost(ctx)
			})
			require.ErrorIs(t, err, rlock.ErrLost)
			require.NotErrorIs(t, err, rlock.ErrNotRun)

			other := locks.Elsewhere()
			_, _, err = other.Mutex("order:42").Lock(ctx)
			require.NoError(t, err)
			locks.Crash(other)
			began = time.Now()
			require.NoError(t, locks.Mutex("order:42").Do(ctx, work))
			within(t, began, rlock.DefaultWatchdogTimeout+time.Second)
		}},
		{"a job once: late, long, failed, busy inside, unreachable", func(t *testing.T, locks *rlocktest.Client) {
			ctx, tick, runs := t.Context(), time.Now(), 0
			job := func(ctx context.Context) error { runs++; return nil }
			other := locks.Elsewhere()
			require.NoError(t, oncePerTick(ctx, locks.Client, "report", tick, job))
			time.Sleep(59 * time.Second)
			require.NoError(t, oncePerTick(ctx, other, "report", tick, job))
			require.Equal(t, 1, runs)

			tick = time.Now()
			long := func(ctx context.Context) error {
				time.Sleep(10 * time.Minute)
				runs++
				return oncePerTick(context.WithoutCancel(t.Context()), other, "report", tick, never)
			}
			require.NoError(t, oncePerTick(ctx, locks.Client, "report", tick, long))
			require.Equal(t, 2, runs)
			require.NoError(t, oncePerTick(ctx, other, "report", tick, job)) // free after the job
			require.Equal(t, 3, runs)

			tick = time.Now()
			broken := errors.New("broken")
			require.ErrorIs(t, oncePerTick(ctx, locks.Client, "report", tick, func(context.Context) error { return broken }), broken)
			require.NoError(t, oncePerTick(ctx, other, "report", tick, never))

			release := locks.HoldElsewhere("data")
			require.ErrorIs(t, oncePerTick(ctx, other, "report", time.Now().Add(time.Hour), func(ctx context.Context) error {
				return other.Mutex("data").TryDo(ctx, time.Second, never)
			}), rlock.ErrNotAcquired)
			release()

			restore := locks.FailRedis()
			require.ErrorIs(t, oncePerTick(ctx, locks.Client, "report", time.Now().Add(time.Hour), never), rlock.ErrUnreachable)
			restore()
		}},
		{"a leader: another one, lost, shut down, dead", func(t *testing.T, locks *rlocktest.Client) {
			candidate := func(client *rlock.Client) (led *atomic.Int64, end func() error) {
				ctx, cancel := context.WithCancel(t.Context())
				result, led := make(chan error, 1), new(atomic.Int64)
				go func() { // ends with ctx, or with its Client
					result <- rlock.Lead(ctx, client.Mutex("leader"), func(ctx context.Context) error {
						return lead(ctx, func() { led.Add(1) })
					})
				}()
				synctest.Wait()
				return led, func() error { cancel(); return <-result }
			}
			first, endFirst := candidate(locks.Client)
			other := locks.Elsewhere()
			second, endSecond := candidate(other)
			time.Sleep(10500 * time.Millisecond)
			require.Equal(t, []int64{10, 0}, []int64{first.Load(), second.Load()})

			locks.Lose("leader") // noticed by the next renewal
			time.Sleep(time.Minute)
			require.Greater(t, first.Load()+second.Load(), int64(50))

			before := second.Load()
			require.ErrorIs(t, endFirst(), context.Canceled)
			time.Sleep(1500 * time.Millisecond)
			require.Greater(t, second.Load(), before)

			third, endThird := candidate(locks.Client)
			locks.Crash(other)
			time.Sleep(rlock.DefaultWatchdogTimeout + 2*time.Second)
			require.Positive(t, third.Load())
			require.ErrorIs(t, endThird(), context.Canceled)
			require.Error(t, endSecond())
		}},
		{"at most n: full, lost, dead, without data, unreachable", func(t *testing.T, locks *rlocktest.Client) {
			ctx, slots := t.Context(), []int(nil)
			work := func(_ context.Context, slot int) error { slots = append(slots, slot); return nil }
			require.NoError(t, locks.PermitSemaphore("gpus").SetPermits(ctx, 2))
			one := locks.HoldExpiringPermitsElsewhere("gpus", 1)
			require.NoError(t, atMost(ctx, locks.Client, "gpus", 2, work))
			require.Equal(t, []int{1}, slots)

			two := locks.HoldExpiringPermitsElsewhere("gpus", 1)
			short, cancel := context.WithTimeout(ctx, time.Second)
			require.ErrorIs(t, atMost(short, locks.Client, "gpus", 2, work), rlock.ErrNotAcquired)
			cancel()
			require.NoError(t, one.Release())
			require.NoError(t, two.Release())

			require.ErrorIs(t, atMost(ctx, locks.Client, "gpus", 2, func(ctx context.Context, _ int) error {
				locks.LosePermit("gpus")
				return untilLost(ctx)
			}), rlock.ErrLost)

			other := locks.Elsewhere()
			for range 2 {
				_, _, err := other.PermitSemaphore("gpus").Acquire(ctx)
				require.NoError(t, err)
			}
			locks.Crash(other)
			began := time.Now()
			require.NoError(t, atMost(ctx, locks.Client, "gpus", 2, work))
			within(t, began, rlock.DefaultWatchdogTimeout+3*time.Second)

			locks.Lose("gpus") // as a Redis that lost its data
			waiting, another := make(chan error), locks.Elsewhere()
			go func() { // ends when the number is set
				_, permit, err := another.PermitSemaphore("gpus").Acquire(ctx)
				if err == nil {
					err = permit.Release()
				}
				waiting <- err
			}()
			synctest.Wait()
			require.NoError(t, atMost(ctx, locks.Client, "gpus", 2, work))
			require.NoError(t, <-waiting)
			changed, err := locks.PermitSemaphore("gpus").TrySetPermits(ctx, 3)
			require.NoError(t, err)
			require.False(t, changed)

			restore := locks.FailRedis()
			require.ErrorIs(t, atMost(ctx, locks.Client, "gpus", 2, work), rlock.ErrUnreachable)
			restore()
		}},
		{"a migration: done elsewhere, failed elsewhere, lost, unreachable", func(t *testing.T, locks *rlocktest.Client) {
			ctx, done, runs := t.Context(), false, 0
			pending := func(ctx context.Context) (bool, error) { return !done, ctx.Err() }
			broken := errors.New("broken")
			other := locks.Elsewhere()
			failed, ends := make(chan error, 1), make(chan struct{})
			go func() { // ends when it is told to fail
				failed <- migrateOnce(ctx, other, pending, func(context.Context) error { <-ends; return broken })
			}()
			synctest.Wait()
			result := make(chan error, 1)
			go func() { // ends after the other one
				result <- migrateOnce(ctx, locks.Client, pending, func(context.Context) error { runs++; done = true; return nil })
			}()
			synctest.Wait()
			require.Zero(t, runs)
			close(ends)
			require.ErrorIs(t, <-failed, broken)
			require.NoError(t, <-result)
			require.Equal(t, 1, runs)
			require.NoError(t, migrateOnce(ctx, other, pending, never))

			done = false
			require.ErrorIs(t, migrateOnce(ctx, locks.Client, pending, func(ctx context.Context) error {
				locks.Lose("migration")
				return untilLost(ctx)
			}), rlock.ErrLost)
			restore := locks.FailRedis()
			require.ErrorIs(t, migrateOnce(ctx, locks.Client, pending, never), rlock.ErrUnreachable)
			restore()
		}},
		{"from Java: held, dead", func(t *testing.T, locks *rlocktest.Client) {
			ctx, runs := t.Context(), 0
			ship := func(ctx context.Context) error { runs++; return ctx.Err() }
			rdb := locks.Redis()
			do := func(command ...string) {
				require.NoError(t, rdb.Do(ctx, rdb.B().Arbitrary(command...).Build()).Error())
			}
			java := func() { // as Redisson locks
				do("HSET", "order:42", "4b2c0d3e-7a54-4c0e-8f7d-2f0d8c3b5a41:1", "1")
				do("PEXPIRE", "order:42", "30000")
			}
			require.NoError(t, shipAsJava(ctx, locks.Client, "order:42", ship))
			java()
			began := time.Now()
			require.ErrorIs(t, shipAsJava(ctx, locks.Client, "order:42", ship), rlock.ErrNotAcquired)
			require.Equal(t, 5*time.Second, time.Since(began))
			result := make(chan error, 1)
			go func() { result <- shipAsJava(ctx, locks.Client, "order:42", ship) }() // ends after Java's unlock
			time.Sleep(time.Second)
			do("DEL", "order:42")
			do("PUBLISH", "redisson_lock__channel:{order:42}", "0")
			began = time.Now()
			require.NoError(t, <-result)
			within(t, began, time.Second)
			java()
			time.Sleep(27 * time.Second) // dead
			require.NoError(t, shipAsJava(ctx, locks.Client, "order:42", ship))
			require.Equal(t, 3, runs)
		}},
		{"a cron job: busy, lost, busy inside", func(t *testing.T, locks *rlocktest.Client) {
			ctx, runs := t.Context(), 0
			log.lines = nil
			other := locks.Elsewhere()
			job := func(context.Context) error { runs++; return nil }
			once(ctx, locks.Mutex("report", rlock.WithMinHold(time.Minute)), job)()
			once(ctx, other.Mutex("report", rlock.WithMinHold(time.Minute)), job)()
			require.Equal(t, 1, runs)
			require.Empty(t, log.lines)
			time.Sleep(time.Hour)
			once(ctx, other.Mutex("report", rlock.WithMinHold(time.Minute)), func(ctx context.Context) error {
				locks.Lose("report")
				return untilLost(ctx)
			})()
			require.Len(t, log.lines, 1)
			require.Contains(t, log.lines[0], "lost")

			release := locks.HoldElsewhere("data") // a lock inside the job is no other run of it
			log.lines = nil
			time.Sleep(time.Hour)
			once(ctx, other.Mutex("report", rlock.WithMinHold(time.Minute)), func(ctx context.Context) error {
				return other.Mutex("data").TryDo(ctx, time.Second, never)
			})()
			require.Len(t, log.lines, 1)
			require.Contains(t, log.lines[0], `"data": not acquired`)
			release()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { c.test(t, rlocktest.New(t)) })
		})
	}
}

// The functions of docs/recipes.md that lock are those above.
func TestRecipesAreThoseOfThePage(t *testing.T) {
	source, err := os.ReadFile("recipes_test.go")
	require.NoError(t, err)
	page, err := os.ReadFile("../docs/recipes.md")
	require.NoError(t, err)
	compared := 0
	for _, block := range regexp.MustCompile("(?s)```go\n(.*?)```").FindAllSubmatch(page, -1) {
		text := block[1]
		if !bytes.HasPrefix(text, []byte("package ")) {
			if !bytes.HasPrefix(text, []byte("// ")) {
				continue // statements
			}
			text = append([]byte("package p\n"), text...)
		}
		file, err := parser.ParseFile(token.NewFileSet(), "", text, parser.ParseComments)
		require.NoError(t, err)
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if ok && strings.Contains(string(text[f.Pos()-1:f.End()-1]), "lock.") || ok && f.Name.Name == "lead" {
				compared++
				if f.Name.Name != "main" {
					require.Contains(t, string(source), string(text[f.Doc.Pos()-1:f.End()-1])+"\n")
				}
			}
		}
	}
	require.Equal(t, 13, compared) // six programs, and the job of a scheduler
}
