package lostunlock

import (
	"context"
	"errors"
	"testing"

	"github.com/go-rlock/rlock/rlock"
)

func TestIsRefused(t *testing.T) {
	var m *rlock.Mutex
	if _, _, err := m.TryLock(context.Background(), 0); !errors.Is(err, rlock.ErrNotAcquired) {
		t.Fatal(err)
	}
}
