package main

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/lua"
)

// pending is how long a holder keeps the other client waiting before it unlocks, so that the waiter is asleep by then. The round trips are
// for a waiter's first attempts. A longer section time replaces it.
func (j *job) pending() time.Duration { return max(2*time.Millisecond+6*j.rtt, j.section) }

// warmHandoffs are made before the window.
const warmHandoffs = 5

// handingOff makes two clients take the lock from each other in turns. Its latency is the time from one's call of unlock to the return of
// the other's lock.
func handingOff(k kind) func(*job) (report, error) {
	return func(j *job) (report, error) { return j.handOffs(k) }
}

func (j *job) handOffs(k kind) (report, error) {
	a, err := j.open(defaultLease)
	if err != nil {
		return report{}, err
	}
	defer a.close()
	b, err := j.open(defaultLease)
	if err != nil {
		return report{}, err
	}
	defer b.close()
	locks := [2]lockFunc{k(a, j.name).write, k(b, j.name).write}
	first, err := locks[0](j.ctx)
	if err != nil {
		return report{}, err
	}
	return j.pingPong(locks, first)
}

// taken is the result and the time of a lock call.
type taken struct {
	unlock func() error
	at     time.Time
	err    error
}

// pingPong measures hand-offs between holder and other; holder has the lock at the start.
func (j *job) pingPong(locks [2]lockFunc, unlock func() error) (report, error) {
	var (
		hist   histogram
		rep    report
		s      = j.witness.slot(0)
		holder = 0
		got    = make(chan taken)
		called = make(chan struct{})
		timer  = time.NewTimer(time.Hour)
	)
	defer timer.Stop()
	v, _ := s.enter(j.id(holder), alone)
	handOff := func() (time.Duration, error) {
		lock := locks[1-holder]
		go func() { // ends with the lock call
			called <- struct{}{}
			unlock, err := lock(j.ctx)
			got <- taken{unlock, time.Now(), err}
		}()
		<-called
		timer.Reset(j.pending())
		select {
		case <-timer.C:
		case t := <-got:
			if t.err == nil {
				rep.Violations++
				t.err = fmt.Errorf("got a lock that is held")
			}
			return 0, t.err
		}
		if !v.leave() {
			rep.Violations++
		}
		rep.Sections++
		before := time.Now()
		if err := unlock(); err != nil {
			return 0, fmt.Errorf("unlock: %w", err)
		}
		t := <-got
		if t.err != nil {
			return 0, fmt.Errorf("lock: %w", t.err)
		}
		holder, unlock = 1-holder, t.unlock
		var ok bool
		if v, ok = s.enter(j.id(holder), alone); !ok {
			rep.Violations++
		}
		return t.at.Sub(before), nil
	}
	for range warmHandoffs {
		if _, err := handOff(); err != nil {
			return report{}, fmt.Errorf("warm-up: %w", err)
		}
	}
	if err := j.begin(); err != nil {
		return report{}, err
	}
	for end := time.Now().Add(j.duration); time.Now().Before(end); {
		d, err := handOff()
		if err != nil {
			return report{}, err
		}
		hist.record(d)
		rep.Ops++
		rep.ElapsedNs += d.Nanoseconds() // the hand-offs' total time, without the pauses before them
	}
	if err := j.end(); err != nil {
		return report{}, err
	}
	if !v.leave() {
		rep.Violations++
	}
	rep.Sections++
	rep.Latency = hist.latency()
	return rep, unlock()
}

// announceRelease is the minimum for an unlock with a notification.
const announceRelease = `redis.call('del', KEYS[1]) return redis.call('publish', ARGV[1], '0')`

// calls take the lock for the i-th client, and free it and wake the other.
type calls func(j *job, rdb rueidis.Client, i int) (acquire, release func() error, err error)

// bareCalls are the minimum for both.
func bareCalls(j *job, rdb rueidis.Client, i int) (acquire, release func() error, err error) {
	scripts, err := loadScripts(rdb, floorAcquire, announceRelease)
	if err != nil {
		return nil, nil, err
	}
	owner, lease := fmt.Sprint("floor:", i), millis(defaultLease)
	acquire = func() error { return scripts[0].call(j.ctx, j.name, owner, lease).Error() }
	release = func() error { return scripts[1].call(j.ctx, j.name, j.channel(1-i)).Error() }
	return acquire, release, nil
}

// rlockCalls use rlock's scripts.
func rlockCalls(j *job, rdb rueidis.Client, i int) (acquire, release func() error, err error) {
	taken := lua.AcquireArgs{Name: j.name, Owner: fmt.Sprint("00000000-0000-0000-0000-000000000000:", i), Lease: defaultLease, Count: 1}
	freed := lua.ReleaseArgs{Name: j.name, Owner: taken.Owner, Lease: defaultLease, Publish: lua.Publish{Name: j.channel(1 - i)}}
	acquire = func() error {
		reply, err := lua.Acquire(j.ctx, rdb, taken)
		if err == nil && reply.Status != lua.Acquired {
			err = errFloorWaits
		}
		return err
	}
	release = func() error {
		_, err := lua.Release(j.ctx, rdb, freed)
		return err
	}
	return acquire, release, nil
}

// runHandoffFloor is the shortest path without a queue in Redis: one script to delete and publish, the message on a dedicated connection,
// and one script to acquire.
func runHandoffFloor(j *job) (report, error) { return j.runAnnounced(bareCalls) }

// runHandoffScripts is the same path with rlock's scripts.
func runHandoffScripts(j *job) (report, error) { return j.runAnnounced(rlockCalls) }

func (j *job) runAnnounced(by calls) (report, error) {
	a, err := dial(j.addr)
	if err != nil {
		return report{}, err
	}
	defer a.Close()
	b, err := dial(j.addr)
	if err != nil {
		return report{}, err
	}
	defer b.Close()
	var locks [2]lockFunc
	for i, rdb := range []rueidis.Client{a, b} {
		if locks[i], err = j.listen(rdb, i, by); err != nil {
			return report{}, err
		}
	}
	// The first one waits for a message, too.
	if err := a.Do(j.ctx, a.B().Publish().Channel(j.channel(0)).Message("0").Build()).Error(); err != nil {
		return report{}, err
	}
	first, err := locks[0](j.ctx)
	if err != nil {
		return report{}, err
	}
	return j.pingPong(locks, first)
}

// channel returns the i-th client's own channel, so that none wakes itself.
func (j *job) channel(i int) string { return fmt.Sprintf("%s:%d", j.name, i) }

// listen subscribes for the i-th client, and returns a lock that waits for its message before its first attempt.
func (j *job) listen(rdb rueidis.Client, i int, by calls) (lockFunc, error) {
	acquire, release, err := by(j, rdb, i)
	if err != nil {
		return nil, err
	}
	messages, broken, err := subscribe(j.ctx, rdb, j.channel(i))
	if err != nil {
		return nil, err
	}
	return func(context.Context) (func() error, error) {
		select {
		case <-messages:
		case err := <-broken:
			return nil, fmt.Errorf("subscription: %w", err)
		}
		if err := acquire(); err != nil {
			return nil, err
		}
		return release, nil
	}, nil
}

// subscribe returns once subscribed. Its connection is dedicated, and ends with the client.
func subscribe(ctx context.Context, rdb rueidis.Client, channel string) (messages <-chan struct{}, broken <-chan error, err error) {
	conn, _ := rdb.Dedicate()
	came := make(chan struct{}, 1)
	subscribed := make(chan struct{}, 1)
	broken = conn.SetPubSubHooks(rueidis.PubSubHooks{
		OnMessage:      func(rueidis.PubSubMessage) { came <- struct{}{} },
		OnSubscription: func(rueidis.PubSubSubscription) { subscribed <- struct{}{} },
	})
	if err := conn.Do(ctx, conn.B().Subscribe().Channel(channel).Build()).Error(); err != nil {
		return nil, nil, err
	}
	<-subscribed
	return came, broken, nil
}
