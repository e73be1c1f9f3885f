package rlocktest

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/go-rlock/rlock/rlock"
)

// kinds are locks of one name.
var kinds = map[string]func(c *rlock.Client, name string) rlock.Locker{
	"plain":       func(c *rlock.Client, name string) rlock.Locker { return c.Mutex(name) },
	"fenced":      func(c *rlock.Client, name string) rlock.Locker { return c.FencedMutex(name) },
	"fair":        func(c *rlock.Client, name string) rlock.Locker { return c.FairMutex(name) },
	"reader":      func(c *rlock.Client, name string) rlock.Locker { return c.RWMutex(name).Read() },
	"writer":      func(c *rlock.Client, name string) rlock.Locker { return c.RWMutex(name).Write() },
	"Upgradeable": func(c *rlock.Client, name string) rlock.Locker { return c.RWMutex(name).Upgradeable() },
	"All":         func(c *rlock.Client, name string) rlock.Locker { return rlock.All(c.Mutex(name), c.Mutex("beside")) },
}

// eachKind runs a test for each kind, in its own bubble.
func eachKind(t *testing.T, f func(t *testing.T, lock func(c *rlock.Client, name string) rlock.Locker)) {
	for name, lock := range kinds {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { f(t, lock) })
		})
	}
}

// keepsOut returns the lock of that kind that excludes all others of its name: for a reader, the writer.
func keepsOut(t *testing.T, lock func(*rlock.Client, string) rlock.Locker) func(*rlock.Client, string) rlock.Locker {
	if strings.HasSuffix(t.Name(), "/reader") {
		return kinds["writer"]
	}
	return lock
}
