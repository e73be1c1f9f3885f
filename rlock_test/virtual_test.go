package rlock_test

import (
	"testing"
	"testing/synctest"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
	"github.com/go-rlock/rlock/rlocktest"
)

// virtual runs a test on an in-memory Redis and in virtual time. It is for tests that wait for leases and need no real server.
func virtual(t *testing.T, test func(t *testing.T, b fixture), o ...rlock.Options) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := fixture{rdb: rlocktest.New(t).Redis(), name: redistest.Name(t)}
		b.Client = newClient(t, b.rdb, o...)
		test(t, b)
	})
}
