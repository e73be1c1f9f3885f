package main

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
)

// TestMain also makes the test binary a worker, with additional broken libraries.
func TestMain(m *testing.M) {
	libraries = append(libraries,
		library{name: "none", open: openNone},
		library{name: "per-process", open: openPerProcess},
		library{name: "no-readers", open: openNoReaders},
		library{name: "never-wakes", open: openNeverWakes},
		library{name: "unreachable", open: func(openOptions) (*client, error) { return nil, errors.New("cannot be opened") }},
		library{name: "fails-later", open: openFailsLater},
		library{name: "dies", open: func(openOptions) (*client, error) { os.Exit(3); return nil, nil }},
	)
	if len(os.Args) > 1 && os.Args[1] == "worker" {
		os.Exit(runWorker(os.Args[2:], os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// openNone provides no exclusion.
func openNone(openOptions) (*client, error) {
	none := func(string) lockFunc {
		return func(context.Context) (func() error, error) { return func() error { return nil }, nil }
	}
	nothing := func(context.Context) error { return nil }
	return &client{
		mutex: none, read: none, write: none,
		semaphore: func(name string, _ int64) lockFunc { return none(name) },
		latch:     func(string) latch { return latch{set: nothing, countDown: nothing, await: nothing} },
		close:     func() {},
	}, nil
}

// openPerProcess excludes within a process only.
func openPerProcess(openOptions) (*client, error) { return openMutexes(nil), nil }

// openNoReaders lets writers exclude each other, but admits readers at any time.
func openNoReaders(openOptions) (*client, error) {
	none, err := openNone(openOptions{})
	return openMutexes(none.read), err
}

// openMutexes uses a sync.Mutex per name.
func openMutexes(read func(string) lockFunc) *client {
	var mutexes sync.Map
	own := func(name string) lockFunc {
		m, _ := mutexes.LoadOrStore(name, new(sync.RWMutex))
		return func(context.Context) (func() error, error) {
			m.(*sync.RWMutex).Lock()
			return func() error { m.(*sync.RWMutex).Unlock(); return nil }, nil
		}
	}
	if read == nil {
		read = func(name string) lockFunc {
			m, _ := mutexes.LoadOrStore(name, new(sync.RWMutex))
			return func(context.Context) (func() error, error) {
				m.(*sync.RWMutex).RLock()
				return func() error { m.(*sync.RWMutex).RUnlock(); return nil }, nil
			}
		}
	}
	return &client{mutex: own, read: read, write: own, close: func() {}}
}

// openNeverWakes allows many locks of a name in a row, and then no more. Its latch never opens.
func openNeverWakes(openOptions) (*client, error) {
	return &client{
		mutex: func(name string) lockFunc {
			left := 100
			return func(context.Context) (func() error, error) {
				if left--; left == 0 && !strings.HasPrefix(name, "warm:") {
					select {}
				}
				return func() error { return nil }, nil
			}
		},
		latch: func(name string) latch {
			nothing := func(context.Context) error { return nil }
			return latch{set: nothing, countDown: nothing, await: func(context.Context) error {
				if !strings.HasPrefix(name, "warm:") {
					select {}
				}
				return nil
			}}
		},
		close: func() {},
	}, nil
}

// openFailsLater survives the warm-up.
func openFailsLater(openOptions) (*client, error) {
	c, err := openNone(openOptions{})
	if err != nil {
		return nil, err
	}
	lock := c.mutex("")
	c.mutex = func(name string) lockFunc {
		if name != "lock" {
			return lock
		}
		return func(context.Context) (func() error, error) { return nil, errors.New("nothing more to give") }
	}
	return c, nil
}

// startBench returns a run whose workers are this test binary.
func startBench(t *testing.T, o options) *bench {
	t.Helper()
	b, stop, err := newBench(o, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return b
}
