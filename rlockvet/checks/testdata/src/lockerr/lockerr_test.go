package lockerr

import (
	"context"
	"testing"

	"github.com/go-rlock/rlock/rlock"
)

func TestWork(t *testing.T) {
	var m *rlock.Mutex
	ctx, unlock, _ := m.Lock(context.Background())
	defer unlock()
	_ = work(ctx)
}
