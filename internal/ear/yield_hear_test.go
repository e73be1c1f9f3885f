package ear

import (
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/tenure"
	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
)

// A crowd of readers, on one tenure or on many, meets a crowd of waiters: none of them visits all the others.
func TestAskablesInACrowd(t *testing.T) { // alone: it counts CPU time
	const n = 40_000
	for name, tenures := range map[string]uint64{"one tenure": 1, "many tenures": n} {
		t.Run(name, func(t *testing.T) {
			e := new(Ear)
			reads, writes := &tenure.Lock{Kind: kinds.Read, Key: "x"}, &tenure.Lock{Kind: kinds.Write, Key: "x"}
			s := &e.askables
			s.due = make(chan struct{}, 1)
			began := redistest.CPU(t)
			var all []*Askable
			for i := range uint64(n) {
				a := newAskable(new(tenure.Hold), 0, reads)
				s.add(&a.at[0], 1+i%tenures, tenure.AfterOther)
				all = append(all, a)
			}
			for range n {
				e.tellHere(reads, nil)
			}
			looked := 0
			for some := s.next(); len(some) > 0; some = s.next() {
				looked += len(some)
			}
			require.Equal(t, int(tenures), looked)
			require.False(t, calls.IsClosed(all[0].asked))
			within := all[n/2]
			for range n {
				e.tellHere(writes, within.hold)
			}
			require.False(t, calls.IsClosed(within.asked))
			for i := range uint64(n) {
				s.heardOf(1 + i%tenures)
			}
			for _, a := range all {
				require.True(t, calls.IsClosed(a.asked))
				require.Same(t, a, s.find(a.hold))
				s.remove(&a.at[0])
				require.Nil(t, s.find(a.hold))
			}
			require.Zero(t, len(s.of)+len(s.holds)+len(s.quiet)+len(s.toLook)+int(s.some.Load()))
			require.Less(t, redistest.CPU(t)-began, 10*time.Second)
		})
	}
}
