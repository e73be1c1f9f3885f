package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// library is a measured lock. To add one, write a function that opens it, and add a row to libraries.
type library struct {
	name string
	open func(o openOptions) (*client, error) // nil: another program is the worker

	// direct are its commands outside of scripts. Commands never called by scripts (see wire) need not be listed.
	direct []string
	// directIn lists further ones, for a workload in which no script calls them.
	directIn map[string][]string
	// runs replaces workloads, for a floor without anything to wait for.
	runs map[string]func(*job) (report, error)
	// only limits it to these workloads.
	only []string
	// never excludes these workloads, because its API does not support them.
	never []string
	// ctx is the kind of context of its calls.
	ctx ctxKind
	// floor marks a lower bound that is not a library.
	floor bool
	// start runs its own server, if it does not use the run's Redis. Such a library is measured only if named.
	start    func(dir string) (*otherServer, error)
	inMemory bool // that server's folder
}

// openOptions are the same for all libraries.
type openOptions struct {
	addr  string
	lease time.Duration // of each hold, renewed if the library renews; 0 is the library's default
}

// client is one instance of a library, with its own connections.
type client struct {
	// mutex returns the named lock. Both may be used from any goroutine.
	mutex func(name string) lockFunc
	// The same for other kinds of locks: in call order, both sides of a read/write lock, and an all-or-nothing lock of several names. Nil if
	// the library does not take part in their workloads.
	fair, read, write func(name string) lockFunc
	all               func(names []string) lockFunc
	// semaphore initializes a semaphore unless it is set, and returns a lock of one permit.
	semaphore func(name string, permits int64) lockFunc
	// permits is the same with expiring permits.
	permits func(name string, permits int64) lockFunc
	latch   func(name string) latch
	// layers takes a lock in several nested layers, each with the previous layer's ctx.
	layers func(name string, n int) lockFunc

	close func()
}

// lockFunc waits until the lock is held or ctx is done.
type lockFunc func(ctx context.Context) (unlock func() error, err error)

// failing is a lock that could not be made.
func failing(err error) lockFunc {
	return func(context.Context) (func() error, error) { return nil, err }
}

// latch is a library's count-down latch; set gives it the count 1.
type latch struct {
	set, countDown, await func(ctx context.Context) error
}

// ctxKind is a kind of caller's context. rueidis treats them differently.
type ctxKind int

const (
	background ctxKind = iota
	cancellable
	deadline
)

// context returns a context of the kind, as a caller has one for many calls.
func (k ctxKind) context() (context.Context, context.CancelFunc) {
	switch k {
	case cancellable:
		return context.WithCancel(context.Background())
	case deadline:
		return context.WithTimeout(context.Background(), time.Hour)
	default:
		return context.Background(), func() {}
	}
}

// defaultLease is long enough that short workloads renew nothing.
const defaultLease = 30 * time.Second

// Names used by the harness itself.
const (
	floorName     = "floor"
	herdFloorName = "floor-herd"
	rlockName     = "rlock"
	redissonName  = "redisson"
	tunedName     = "rueidislock-1-noloop"
)

// withCtx are the workloads of the context variants.
var withCtx = []string{"pair", "names"}

// runsOnly are the workloads of the hand-off limit variants.
var runsOnly = []string{"contended", "asymmetric"}

// lingers are the workloads of the variant with WithLinger.
var lingers = []string{"pair", "contended", "affinity", "ping-pong"}

// family are the workloads of other kinds of locks.
var family = []string{"fair", "fair-herd", "fair-handoff", "readers", "mixed", "all-100", "nested", "semaphore", "semaphore-herd", "permits", "permits-herd", "latch", "latch-herd"}

// elsewhere are the workloads of libraries with their own servers.
var elsewhere = []string{"pair", "handoff", "herd", "crash"}

// libraries are all measured libraries, in the order of the tables.
var libraries = []library{
	{name: floorName, open: openFloor, floor: true, runs: map[string]func(*job) (report, error){
		"handoff": runHandoffFloor, "contended": runChain, "local": runChain,
	}, never: []string{"herd", "crash", "asymmetric", "service", "waiters", "holds", "fair", "fair-herd", "fair-handoff", "mixed",
		"semaphore", "semaphore-herd", "permits", "permits-herd", "latch", "latch-herd"}},
	{name: "floor-cancel", open: openFloor, floor: true, only: withCtx, ctx: cancellable},
	{name: "floor-deadline", open: openFloor, floor: true, only: withCtx, ctx: deadline},
	{name: "floor-scripts", open: openScripts, floor: true, only: []string{"pair", "names", "handoff"}, runs: map[string]func(*job) (report, error){
		"handoff": runHandoffScripts,
	}},
	{name: "floor-relay", open: openFloor, floor: true, only: []string{"contended", "local"}, runs: map[string]func(*job) (report, error){
		"contended": runRelay, "local": runRelay,
	}},
	{name: herdFloorName, open: openHerd, floor: true, only: []string{"herd", "fair-herd", "semaphore", "semaphore-herd"}},
	// As a request calls.
	{name: "rlock-deadline", open: openRlock, only: withCtx, ctx: deadline},
	{name: "bsm-deadline", open: openBsm, only: withCtx, ctx: deadline},
	{name: "redsync-rueidis-deadline", open: openRedsyncRueidis, only: withCtx, ctx: deadline},
	{name: "rlock-cancel", open: openRlock, only: withCtx, ctx: cancellable},
	{name: "bsm-cancel", open: openBsm, only: withCtx, ctx: cancellable},
	{name: "redsync-rueidis-cancel", open: openRedsyncRueidis, only: withCtx, ctx: cancellable},
	{name: rlockName, open: openRlock},
	{name: "rlock-alone", open: openHandOffs(-1), only: runsOnly},
	{name: "rlock-linger", open: openLinger, only: lingers},
	{name: "rlock-4", open: openHandOffs(4), only: runsOnly},
	{name: "rlock-16", open: openHandOffs(16), only: runsOnly},
	{name: "rlock-32", open: openHandOffs(32), only: runsOnly},
	{name: "rlock-64", open: openHandOffs(64), only: runsOnly},
	{name: "rueidislock", open: openRueidislock(2, false), never: family},
	{name: "rueidislock-1", open: openRueidislock(1, false), never: family},
	{name: tunedName, open: openRueidislock(1, true), never: family},
	{name: "redsync", open: openRedsync, direct: []string{"set"}, never: append(family, "holds", "crash")},
	{name: "redsync-rueidis", open: openRedsyncRueidis, direct: []string{"set"}, never: append(family, "holds", "crash")},
	{name: "bsm", open: openBsm, never: append(family, "holds", "crash")},
	{name: redissonName, never: []string{"crash", "service"}, directIn: map[string][]string{"latch": {"get"}, "latch-herd": {"get"}}},
	{name: "rlock-fsync", open: openRlock, start: startSyncedRedis, only: elsewhere},
	{name: "postgres", open: openPostgres, start: startPostgres, only: elsewhere},
	{name: "etcd", open: openEtcd, start: startEtcd, only: elsewhere, direct: etcdMethods},
	{name: "etcd-memory", open: openEtcd, start: startEtcd, inMemory: true, only: elsewhere, direct: etcdMethods},
	{name: "zookeeper", open: openZookeeper, start: startZookeeper, only: elsewhere, direct: []string{"packet"}},
}

// takesPart reports whether the library is measured in the workload.
func (l *library) takesPart(workload string) bool {
	if len(l.only) > 0 {
		return slices.Contains(l.only, workload)
	}
	return !slices.Contains(l.never, workload)
}

// processes returns how many of the cell's processes take part: a replaced workload runs in one, because there is no contention.
func (l *library) processes(c cell) int {
	if l.runs[c.Workload] != nil {
		return 1
	}
	return c.Processes
}

// serverOf names a library's server.
func serverOf(lib string) string {
	switch name, _, _ := strings.Cut(lib, "-"); name {
	case "postgres":
		return "PostgreSQL"
	case "zookeeper":
		return "ZooKeeper"
	case "etcd":
		return "etcd"
	default:
		return "Redis"
	}
}

// peer reports whether a user could use this library instead of rlock.
func (l *library) peer() bool { return !l.floor && !strings.HasPrefix(l.name, rlockName) }

func findLibrary(name string) (*library, error) {
	for i := range libraries {
		if libraries[i].name == name {
			return &libraries[i], nil
		}
	}
	return nil, fmt.Errorf("no library is called %q", name)
}
