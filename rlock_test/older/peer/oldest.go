//go:build oldest

package main

var otherKinds map[string]func(p *peer, name string) (l locker, reads bool)

func (*peer) grants() uint64 { return 0 }
