package engine

import (
	"maps"
	"slices"
	"time"
)

const (
	// rememberedTags bounds a tagRing.
	rememberedTags = 64
	// rememberedKeys bounds a recentKeys.
	rememberedKeys = 1000
)

// tagRing remembers the last tags of tenures added to it. The zero value is empty, because no tenure has the tag 0.
type tagRing struct {
	tags   [rememberedTags]uint64
	oldest int
}

func (r *tagRing) has(tag uint64) bool { return slices.Contains(r.tags[:], tag) }

func (r *tagRing) add(tag uint64) {
	if !r.has(tag) {
		r.tags[r.oldest] = tag
		r.oldest = (r.oldest + 1) % len(r.tags)
	}
}

// take removes a tag and reports whether it was there.
func (r *tagRing) take(tag uint64) bool {
	at := slices.Index(r.tags[:], tag)
	if at >= 0 {
		r.tags[at] = 0
	}
	return at >= 0
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
