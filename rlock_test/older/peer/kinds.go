//go:build !oldest

package main

import (
	"math/rand/v2"

	"github.com/go-rlock/rlock/rlock"
)

// otherKinds are the kinds missing in the oldest version.
var otherKinds = map[string]func(p *peer, name string) (l locker, reads bool){
	"fair":        func(p *peer, name string) (locker, bool) { return p.clients[0].FairMutex(name), false },
	"read":        reader,
	"write":       writer,
	"upgradeable": func(p *peer, name string) (locker, bool) { return p.clients[0].RWMutex(name).Upgradeable(), true },
	"readwrite": func(p *peer, name string) (locker, bool) {
		if rand.IntN(3) == 0 {
			return writer(p, name)
		}
		return reader(p, name)
	},
	"all": func(p *peer, name string) (locker, bool) {
		return rlock.All(p.clients[0].Mutex(name), p.clients[0].FencedMutex(name+":other")), false
	},
	"quorum": func(p *peer, name string) (locker, bool) {
		var members []rlock.Locker
		for _, c := range p.clients {
			members = append(members, c.Mutex(name))
		}
		return rlock.Quorum(members...), false
	},
}

func reader(p *peer, name string) (locker, bool) { return p.clients[0].RWMutex(name).Read(), true }
func writer(p *peer, name string) (locker, bool) { return p.clients[0].RWMutex(name).Write(), false }

// grants is how many locks other processes have handed to this one.
func (p *peer) grants() uint64 { return p.clients[0].Stats().Grants }
