package lease

import "time"

// keeper implements Keeper with functions.
type keeper struct {
	item  Item
	group any
	lost  func(Loss)
}

func (k keeper) Closed() {}

func (k keeper) Item() Item  { return k.item }
func (k keeper) Group() any  { return k.group }
func (k keeper) Lost(l Loss) { k.lost(l) }

// renewedIf returns the ttl of a lease: the watchdog time if it is renewed, otherwise 0.
func renewedIf(renewed bool) time.Duration {
	if renewed {
		return watchdog
	}
	return 0
}
