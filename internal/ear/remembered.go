package ear

import (
	"maps"
	"time"
)

const (
	// rememberedTags is how many tags a recentTags remembers at least: about 16 bytes each.
	rememberedTags = 10_000
	// rememberedKeys bounds a recentKeys.
	rememberedKeys = 1000
)

// recentTags remembers the last rememberedTags of the tags of tenures added to it, and at most twice as many. The zero value is empty.
type recentTags struct{ latest, before map[uint64]struct{} }

func (r *recentTags) has(tag uint64) bool {
	_, latest := r.latest[tag]
	_, before := r.before[tag]
	return latest || before
}

func (r *recentTags) add(tag uint64) {
	if len(r.latest) >= rememberedTags {
		r.latest, r.before = nil, r.latest
	}
	if r.latest == nil {
		r.latest = make(map[uint64]struct{})
	}
	r.latest[tag] = struct{}{}
}

func (r *recentTags) take(tag uint64) bool {
	was := r.has(tag)
	delete(r.latest, tag)
	delete(r.before, tag)
	return was
}

// recentKeys remembers each key until a time. When it is full of keys that are still recent, it forgets them all. The zero value is empty.
type recentKeys struct {
	until map[string]time.Time
}

func (r *recentKeys) has(key string, now time.Time) bool { return now.Before(r.until[key]) }

func (r *recentKeys) add(key string, now time.Time, d time.Duration) {
	if len(r.until) >= rememberedKeys {
		maps.DeleteFunc(r.until, func(_ string, until time.Time) bool { return !now.Before(until) })
	}
	if r.until == nil || len(r.until) >= rememberedKeys {
		r.until = make(map[string]time.Time)
	}
	r.until[key] = now.Add(d)
}

func (r *recentKeys) remove(key string) { delete(r.until, key) }
