package sim

import (
	"maps"
	"slices"
)

// changes are those to the number of all permits of a semaphore. The mutex of its oracle guards them.
type changes struct {
	added int64   // by calls that have returned
	under []int64 // by calls under way
	vague []claim // by calls that have failed: in the end they have added it
}

// begin notes that a call is made which adds so many.
func (c *changes) begin(n int64) { c.under = append(c.under, n) }

// end notes that it has returned: it has added them, or failed, so that it will, or was refused.
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

// unsure are those that may have been added.
func (c *changes) unsure() []int64 {
	all := slices.Clone(c.under)
	for _, v := range c.vague {
		all = append(all, v.n)
	}
	return all
}

// bounds are how many were added at least, and at most.
func (c *changes) bounds() (least, most int64) {
	least, most = c.added, c.added
	for _, n := range c.unsure() {
		least, most = least+min(n, 0), most+max(n, 0)
	}
	return least, most
}

// settled is how many were added in the end, and what processes may have added as well of which that is not known.
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

// manySums are so many that not all of them are looked at.
const manySums = 200

// isSum reports whether n is the sum of some of the numbers. If there are many sums, it only has to be between the least and the largest.
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
