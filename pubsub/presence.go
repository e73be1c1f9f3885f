package pubsub

import "time"

// presence is what a Hub knows of listeners out of line where there is no queue in Redis: only their unlocks show that there are any. So it
// looks for them by a courtesy now and then, and more and more seldom if none comes.
type presence struct {
	came time.Time // the last of their unlocks
	vain int       // courtesies since
	next time.Time // the next one may begin then
}

const (
	// stays is how long after their last unlock they are taken to be there.
	stays = time.Minute
	// doublings bounds the pause between two vain courtesies: 8 s.
	doublings = 5
)

// seen notes an unlock of one of them.
func (p *presence) seen(now time.Time) { *p = presence{came: now} }

// isLikely reports whether a courtesy towards them is due, for the unlock of now.
func (p *presence) isLikely(now time.Time) bool {
	if !p.came.IsZero() && now.Sub(p.came) < stays {
		return true
	}
	if now.Before(p.next) {
		return false
	}
	p.next = now.Add(again << p.vain)
	p.vain = min(p.vain+1, doublings)
	return true
}
