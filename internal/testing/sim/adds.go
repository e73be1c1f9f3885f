package sim

import (
	"maps"
	"slices"
)

// changes are the changes to the number of all permits of a semaphore. The mutex of its oracle guards them.
type changes struct {
	added int64   // by calls that have returned
	under []int64 // by calls in progress
	vague []claim // by failed calls: in the end they have added it
}

// begin notes a call that adds n.
func (c *changes) begin(n int64) { c.under = append(c.under, n) }

// end notes the call's return: it has added n, or failed and will add it later, or was refused.
func (c *changes) end(p *process, n int64, failed, refused bool) {
	at := slices.Index(c.under, n)
	c.under = slices.Delete(c.under, at, at+1)
	switch {
	case refused:
	case failed:
		c.vague = append(c.vague, claim{process: p, n: n})
	default:
		c.added += n
	}
}

// unsure returns the numbers that may have been added.
func (c *changes) unsure() []int64 {
	all := slices.Clone(c.under)
	for _, v := range c.vague {
		all = append(all, v.n)
	}
	return all
}

// bounds returns the least and the greatest number that may have been added.
func (c *changes) bounds() (least, most int64) {
	least, most = c.added, c.added
	for _, n := range c.unsure() {
		least, most = least+min(n, 0), most+max(n, 0)
	}
	return least, most
}

// settled returns the number added in the end, and the numbers that processes with an unknown outcome may have added.
func (c *changes) settled(isVague func(*process) bool) (added int64, unsure []int64) {
	added = c.added
	for _, v := range c.vague {
		if isVague(v.process) {
			unsure = append(unsure, v.n)
		} else {
			added += v.n
		}
	}
	return added, unsure
}

// manySums is the span of possible sums above which isSum does not compute them all.
const manySums = 200

// isSum reports whether n is the sum of some of the numbers. If there are many sums, n need only be between the least
// and the largest.
func isSum(n int64, of []int64) bool {
	var least, most int64
	for _, x := range of {
		least, most = least+min(x, 0), most+max(x, 0)
	}
	if n < least || n > most || most-least > manySums {
		return least <= n && n <= most
	}
	sums := map[int64]bool{0: true}
	for _, x := range of {
		for _, sum := range slices.Collect(maps.Keys(sums)) {
			sums[sum+x] = true
		}
	}
	return sums[n]
}
