package tenure

import (
	"context"

	"github.com/go-rlock/rlock/lua"
)

// Held is an open level in a ctx, for the test kit. The kit is a separate module, and a program may use an older version: so Held and
// HeldBy must not change.
type Held struct {
	Name   string
	Shared bool // a reader
	Again  bool // a re-entry
}

// HeldBy returns the open levels in ctx, innermost first. The second lock of an Upgradeable is not listed separately.
func HeldBy(ctx context.Context) (all []Held) {
	for l := LevelOf(ctx); l != nil; l = l.Enclosing() {
		if l.IsOpen() && !l.Lock.IsUpgradeGate {
			all = append(all, Held{l.Lock.Name, l.Lock.Kind.Side == lua.Reader, l.IsReentry()})
		}
	}
	return all
}
