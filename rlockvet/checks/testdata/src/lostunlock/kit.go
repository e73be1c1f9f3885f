package lostunlock

import (
	"context"
	"testing"

	"github.com/go-rlock/rlock/rlock"
)

// AssertBusy is a helper of tests.
func AssertBusy(t *testing.T, m *rlock.Mutex) {
	if _, _, err := m.TryLock(context.Background(), 0); err == nil {
		t.Error("not busy")
	}
}
