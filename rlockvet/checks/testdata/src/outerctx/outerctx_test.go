package outerctx

import (
	"context"
	"testing"

	"github.com/go-rlock/rlock/rlock"
)

func TestBusy(t *testing.T) {
	ctx := context.Background()
	var m *rlock.Mutex
	_, unlock, err := m.Lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if err := work(ctx); err == nil {
		t.Error("worked, though another one has the lock")
	}
}
