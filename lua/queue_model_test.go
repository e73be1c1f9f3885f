package lua_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
	"github.com/go-rlock/rlock/lua"
)

// model is the expected state of a lock with its queue.
type model struct {
	holder  string
	count   int // 0: the lock is reserved for its holder
	queue   []string
	counter int64 // of tokens
	alive   func(owner string) bool
	unseen  func(owner string) bool // lives, but the server counts none of its subscriptions
	heard   map[string]string       // by owner: the token that came with the grant
}

func entryOf(owner, fence string) string {
	if fence != "" {
		return owner + " f"
	}
	return owner
}

func (m *model) join(entry string) {
	if !slices.Contains(m.queue, entry) {
		m.queue = append(m.queue, entry)
	}
}

func (m *model) leave(entry string) {
	m.queue = slices.DeleteFunc(m.queue, func(e string) bool { return e == entry })
}

// hold makes an owner the holder and returns its token.
func (m *model) hold(owner, fence string) int64 {
	m.holder, m.count = owner, 1
	m.leave(entryOf(owner, fence))
	if fence == "" {
		return 0
	}
	m.counter++
	return m.counter
}

func (m *model) acquire(a lua.AcquireArgs) lua.AcquireReply {
	reply := lua.AcquireReply{Status: lua.Acquired}
	switch {
	case m.holder == "" || m.holder == a.Owner && m.count == 0:
		reply.Token = m.hold(a.Owner, a.Fence)
	case m.holder == a.Owner:
		m.leave(entryOf(a.Owner, a.Fence))
		if a.Fence != "" {
			reply.Token = m.counter
		}
	default:
		m.join(entryOf(a.Owner, a.Fence))
		place := 1 + slices.Index(m.queue, entryOf(a.Owner, a.Fence))
		reply = lua.AcquireReply{Status: lua.Held, Holder: m.holder, Joined: true, Place: place}
	}
	return reply
}

func (m *model) release(a lua.ReleaseArgs) lua.ReleaseReply {
	handOff := func() lua.ReleaseReply {
		reply := lua.ReleaseReply{Status: lua.HandedOff, Token: m.hold(a.Next, a.Fence)}
		if a.Fence != "" {
			reply.Spare = int64(a.Spare)
			m.counter += reply.Spare
		}
		return reply
	}
	switch {
	case m.holder != a.Owner:
		m.leave(a.Owner)
		m.leave(entryOf(a.Owner, "fence"))
		return notHeld
	case a.Next != "" && a.Stay:
		return handOff()
	case a.Next != "":
		m.join(entryOf(a.Next, a.Fence))
	}
	for len(m.queue) > 0 {
		entry := m.queue[0]
		if m.unseen(entry) {
			m.holder, m.queue = "", m.queue[1:]
			return outsidersTold // it is slower to ask, as they are
		}
		m.queue = m.queue[1:]
		if a.Next != "" && entry == entryOf(a.Next, a.Fence) {
			return handOff()
		}
		owner, fenced := strings.CutSuffix(entry, " f")
		if !m.alive(owner) {
			continue
		}
		count, token := 1, "-"
		if fenced && a.Fence != "" {
			m.counter++
			token = fmt.Sprint(m.counter)
		} else if fenced {
			count = 0
		}
		m.holder, m.count, m.heard[owner] = owner, count, token
		return granted
	}
	m.holder = ""
	return freed
}

// Random calls by live and dead processes have the model's effects. Only the addressed process gets a grant, and everything in Redis has an
// expiry.
func TestQueueIsLikeItsModel(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	l := newLab(t, redistest.Dial(t, redistest.Shared(t)))
	ears := map[int]*ear{1: l.process(1), 2: l.process(2), 3: l.process(3)}
	const processes = 7 // three of them are dead
	m := &model{
		heard:  make(map[string]string),
		alive:  func(owner string) bool { return owner[7] <= '3' },
		unseen: func(owner string) bool { return owner[7] == '7' },
	}

	// An owner with an even tag wants tokens.
	owner := func() (string, string) {
		tag, fence := 1+random.IntN(4), ""
		if tag%2 == 0 {
			fence = l.fence
		}
		return fmt.Sprintf("%s:%d", client(1+random.IntN(processes)), tag), fence
	}
	kind := func(owner string) string {
		if strings.HasSuffix(owner, "2") || strings.HasSuffix(owner, "4") {
			return l.fence
		}
		return ""
	}
	for range 600 {
		if random.IntN(3) > 0 || m.holder == "" {
			a := l.asks("")
			a.Owner, a.Fence = owner()
			want := m.acquire(a)
			var got lua.AcquireReply
			if m.unseen(a.Owner) {
				var err error
				got, err = lua.Acquire(t.Context(), l.rdb, a)
				require.NoError(t, err)
			} else {
				got = l.acquire(a)
			}
			got.TTL = 0
			require.Equal(t, want, got, "%+v", a)
		} else {
			a := l.ends()
			a.Owner, a.Fence = owner()
			if random.IntN(4) > 0 {
				a.Owner, a.Fence = m.holder, kind(m.holder)
			}
			if next, fence := owner(); random.IntN(2) == 0 && next != a.Owner && m.alive(next) {
				a.Next, a.Fence, a.Stay, a.Spare = next, fence, random.IntN(2) == 0, random.IntN(3)
			}
			want := m.release(a)
			require.Equal(t, want, l.releases(a), "%+v", a)
		}
		fields := map[string]string{}
		if m.holder != "" {
			fields[m.holder] = fmt.Sprint(m.count)
			require.Positive(t, l.ttl())
		}
		require.Equal(t, fields, l.fields())
		l.requirePlaces(m.queue...)
		if len(m.queue) > 0 {
			require.Positive(t, l.number("PTTL", l.queue))
		}
		for i, ear := range ears {
			for _, said := range ear.said() {
				if words := strings.Fields(said); words[0] != "?" {
					require.True(t, strings.HasPrefix(words[0], client(i)))
					require.Equal(t, m.heard[words[0]], words[3])
					delete(m.heard, words[0])
				}
			}
		}
		require.Empty(t, m.heard)
	}
}
