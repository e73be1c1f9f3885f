package older

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
)

// talk is the traffic between a process and Redis: commands and messages, a line each.
type talk struct {
	mu    sync.Mutex // guards the following
	lines []string
	calls int // answered script calls
}

var (
	someClient = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)
	someTag    = regexp.MustCompile(`(<client>:)\d{1,6}\b`) // which differs with how many there were; one with a mark is longer
)

// record puts a recording proxy before the server.
func record(t *testing.T, addr string) (to *talk, proxy string) {
	t.Helper()
	p := redistest.StartProxy(t, addr)
	to = new(talk)
	p.OnRequest(func(words []string) redistest.Action {
		to.note("> ", words)
		return redistest.Pass
	})
	p.OnReply(func(words []string) redistest.Action {
		switch {
		case strings.HasSuffix(words[0], "MESSAGE"):
			to.note("< ", words)
		case strings.HasPrefix(words[0], "EVAL"):
			to.mu.Lock()
			to.calls++
			to.mu.Unlock()
		}
		return redistest.Pass
	})
	return to, p.Addr()
}

func (to *talk) note(way string, words []string) {
	switch {
	case slices.Contains([]string{"HELLO", "CLIENT", "PING"}, words[0]): // part of connecting
		return
	case isRenewal(words): // only if the machine stood still
		return
	}
	text := someTag.ReplaceAllString(someClient.ReplaceAllString(strings.Join(words, " "), "<client>"), "${1}<tag>")
	to.mu.Lock()
	defer to.mu.Unlock()
	to.lines = append(to.lines, way+text)
}

// isRenewal reports whether a script call is a renewal: its first argument is the lease, not an owner.
func isRenewal(words []string) bool {
	if len(words) < 3 || !strings.HasPrefix(words[0], "EVAL") {
		return false
	}
	keys, err := strconv.Atoi(words[2])
	return err == nil && len(words) > 3+keys && words[3+keys] == "30000"
}

// answered returns how many script calls were answered.
func (to *talk) answered() int {
	to.mu.Lock()
	defer to.mu.Unlock()
	return to.calls
}

// about returns the traffic with that name, sorted: two connections have no common order.
func (to *talk) about(name string) (lines []string) {
	to.mu.Lock()
	defer to.mu.Unlock()
	for _, line := range to.lines {
		if strings.Contains(line, name) {
			lines = append(lines, strings.ReplaceAll(line, name, "<name>"))
		}
	}
	slices.Sort(lines)
	return lines
}

// besides returns the traffic without any of those names.
func (to *talk) besides(names []string) (lines []string) {
	to.mu.Lock()
	defer to.mu.Unlock()
	for _, line := range to.lines {
		if !slices.ContainsFunc(names, func(name string) bool { return strings.Contains(line, name) }) {
			lines = append(lines, line)
		}
	}
	return lines
}

// unused are pairs of locks. A process holds the first alone, or another waits for it with the second.
var unused = [][2]string{
	{"plain"}, {"fenced"}, {"fair"}, {"write"}, {"read"}, {"upgradeable"}, {"all"},
	{"plain", "plain"}, {"fenced", "fenced"}, {"fair", "fair"}, {"write", "write"}, {"write", "read"}, {"read", "write"},
}

// Locks of processes that do not use the ear cost as much as before it existed: the same scripts, commands,
// messages and bytes, for free locks, held locks, waiters and the hand-over. A busy machine may add some, so the
// best of several rounds counts.
func TestUnusedIsAsBefore(t *testing.T) {
	t.Parallel()
	saidBefore, restBefore := unusedTalk(t, buildOlder(t, beforeTheEar))
	said, rest := unusedTalk(t, build(t))
	for _, about := range slices.Sorted(maps.Keys(said)) {
		if strings.HasSuffix(about, "process 0") {
			require.NotEmpty(t, said[about], about)
		}
		require.Equal(t, saidBefore[about], said[about], about)
	}
	require.Equal(t, restBefore, rest)
}

// unusedTalk returns the traffic of two processes of a version with a server, for each pair, and the rest.
func unusedTalk(t *testing.T, program string) (said map[string][]string, rest [2][]string) {
	t.Helper()
	addr := redistest.Start(t).Addr()
	rdb := redistest.Dial(t, addr)
	var talks [2]*talk
	var peers [2]*peer
	for i := range peers {
		var proxy string
		talks[i], proxy = record(t, addr)
		peers[i] = start(t, program, fmt.Sprintf("process %d", i), []string{proxy})
	}
	said = make(map[string][]string)
	var names []string
	for round := range 4 {
		about := make(map[string]string)
		for _, pair := range unused {
			both := strings.TrimSpace(strings.Join(pair[:], " "))
			name := fmt.Sprintf("unused-%d-%s.", round, strings.ReplaceAll(both, " ", "-"))
			about[both] = name
			names = append(names, name)
			holder := peers[0].lock(t, pair[0], name)
			holder.in(t)
			if pair[1] == "" {
				holder.unlock(t)
				continue
			}
			asked := talks[1].answered()
			waiter := peers[1].lock(t, pair[1], name)
			redistest.Eventually(t, patience, func() bool { return talks[1].answered() >= asked+2 }, "the waiter sleeps")
			<-time.After(200 * time.Millisecond) // a sleeping waiter sends nothing
			waiter.requireOut(t)
			holder.unlock(t)
			waiter.in(t)
			waiter.unlock(t)
		}
		redistest.Eventually(t, patience, func() bool {
			channels, err := rdb.Do(t.Context(), rdb.B().PubsubChannels().Pattern("*unused*").Build()).AsStrSlice()
			return err == nil && len(channels) == 0
		}, "all subscriptions end")
		for both, name := range about {
			for i, to := range talks {
				key := fmt.Sprintf("%s, process %d", both, i)
				if lines, least := to.about(name), said[key]; least == nil || len(lines) < len(least) {
					said[key] = lines
				}
			}
		}
	}
	for i, to := range talks {
		rest[i] = to.besides(names)
	}
	return said, rest
}
