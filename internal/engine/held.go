package engine

import (
	"context"

	"github.com/go-rlock/rlock/lua"
)

// Held is an open level that a ctx carries, as the test kit sees it. That is a module of its own, of which a program may have an older version: so this and
// HeldBy stay as they are.
type Held struct {
	Name   string
	Shared bool // it reads
	Again  bool // it has re-entered a hold
}

// HeldBy are the open levels that ctx carries, the innermost first. The lock beside that of an Upgradeable is none of its own.
func HeldBy(ctx context.Context) (all []Held) {
	for l := levelOf(ctx); l != nil; l = l.enclosing() {
		if l.IsOpen() && !l.spec.beside {
			all = append(all, Held{l.spec.Name, l.spec.Kind.Side == lua.Reader, l != &l.hold.first})
		}
	}
	return all
}
