#!/usr/bin/env bash
# jellydator/ttlcache: whoever asks again and again for a lock made by GetOrSet with a TTL keeps it locked, for good
#
# Run:      jellydator/ttlcache 3.4.1 (Go): GetOrSet of a lock with a TTL of 300 ms by somebody who then dies. Others look at it every 50 ms,
#           thirty times: by GetOrSet, by Has, and by GetOrSet in a cache made with WithDisableTouchOnHit.
# Guess:    free after 300 ms in each case. GetOrSet gives its TTL to what it sets, and the lock was set once.
# Seen:     a hit starts the entry's own time anew, as an idle time would be, unless the cache is told otherwise: with GetOrSet the lock is
#           never free. Has does not do it.
# Matters:  the more want the lock, the longer a dead holder has it. A time to live that readers extend is right for a session, and is no
#           lease; a test in which one waits for longer than the TTL and then asks once does not show it.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

go_modules github.com/jellydator/ttlcache/v3@v3.4.1
cat >main.go <<'END'
package main

import (
	"fmt"
	"time"

	"github.com/jellydator/ttlcache/v3"
)

const ttl = 300 * time.Millisecond

func ask(cache *ttlcache.Cache[string, string]) (free bool) {
	_, found := cache.GetOrSet("lock", "me", ttlcache.WithTTL[string, string](ttl))
	return !found
}

func has(cache *ttlcache.Cache[string, string]) (free bool) {
	return !cache.Has("lock")
}

func main() {
	for _, way := range []struct {
		name    string
		options []ttlcache.Option[string, string]
		free    func(*ttlcache.Cache[string, string]) bool
	}{
		{"GetOrSet", nil, ask},
		{"Has", nil, has},
		{"GetOrSet, WithDisableTouchOnHit", []ttlcache.Option[string, string]{ttlcache.WithDisableTouchOnHit[string, string]()}, ask},
	} {
		cache := ttlcache.New(way.options...)
		cache.GetOrSet("lock", "dead", ttlcache.WithTTL[string, string](ttl))
		free := false
		for i := 0; i < 30 && !free; i++ {
			time.Sleep(50 * time.Millisecond)
			free = way.free(cache)
		}
		fmt.Printf("%s: free within 1.5 s: %t\n", way.name, free)
	}
}
END
expect go run . <<'END'
GetOrSet: free within 1.5 s: false
Has: free within 1.5 s: true
GetOrSet, WithDisableTouchOnHit: free within 1.5 s: true
END
