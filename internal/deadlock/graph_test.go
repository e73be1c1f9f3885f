package deadlock

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/testing/require"
)

// fake is a wait blocked by other owners, with a ctx that carries its own holds.
type fake struct {
	Wait

	over      bool
	keeps     []string
	blockers  []string
	asked     func() // runs while the wait is asked
	found     []Step
	overtaken []string // its blockers, as reported when asked
	looks     *int     // counts how often a search looks at it; nil: not counted
	says      func(owner, text string)
}

func (f *fake) IsWaiting() bool    { return !f.over }
func (f *fake) Blockers() []string { return f.blockers }
func (f *fake) Refresh() {
	if f.overtaken != nil {
		f.blockers = f.overtaken
	}
}

func (f *fake) Keeps(owner string) bool {
	if f.looks != nil {
		*f.looks++
	}
	return slices.Contains(f.keeps, owner)
}

func (f *fake) Found(cycle []Step) { f.found = cycle }

func (f *fake) Say(owner, text string) { f.says(owner, text) }

func (f *fake) IsBlocked(owner string) bool {
	if f.asked != nil {
		f.asked()
	}
	return slices.Contains(f.blockers, owner)
}

// find returns the cycle that closes with this wait, within its own process.
func (g *Graph) find(f *fake) []Step {
	f.found = nil
	if g.SearchCycle(&f.Wait, 0) {
		return f.found
	}
	return nil
}

// newFake returns a wait that starts after all earlier ones.
func newFake(at int, keeps []string, blockers ...string) *fake {
	f := &fake{keeps: keeps, blockers: blockers}
	f.Wait = Wait{Sleeper: f, Number: uint64(at), Began: time.Unix(int64(at), 0), Client: "c", Lock: fmt.Sprint("lock ", at)}
	for _, k := range keeps {
		f.Holds = append(f.Holds, Hold{Owner: k, Name: "name of " + k})
	}
	return f
}

// In random graphs a wait finds a cycle if and only if it is the last wait of a cycle.
func TestFindsCycles(t *testing.T) {
	found := 0
	for seed := range uint64(500) {
		random := rand.New(rand.NewPCG(seed, 1))
		n := 2 + random.IntN(7)
		all := make([]*fake, n)
		for i := range all {
			var blockers []string
			for range 1 + random.IntN(3) {
				blockers = append(blockers, fmt.Sprint("h", random.IntN(n+2))) // some of nobody who waits
			}
			keeps := []string{fmt.Sprint("h", i)}
			if random.IntN(4) == 0 {
				keeps = append(keeps, fmt.Sprint("h", i, "b"))
			}
			all[i] = newFake(random.IntN(4), keeps, blockers...) // some start at the same instant
			all[i].Number = uint64(i)
		}
		g := New()
		for _, f := range all {
			g.Add(&f.Wait)
		}
		for _, f := range all {
			cycle := g.find(f)
			require.Equal(t, isLastOfACycle(g, all, f), cycle != nil, seed)
			for i, s := range cycle {
				next := cycle[(i+1)%len(cycle)]
				at := slices.IndexFunc(all, func(o *fake) bool { return o.Number == s.Number })
				require.True(t, slices.Contains(all[at].blockers, next.Owner), seed)
				require.True(t, i == 0 || s.before(&cycle[0]), seed)
			}
			if cycle != nil {
				found++
			}
		}
		for _, f := range all {
			g.Remove(&f.Wait)
		}
		require.Empty(t, g.Waits())
		require.Empty(t, g.of)
	}
	require.True(t, found > 150)
}

// isLastOfACycle cross-checks with another algorithm: the transitive closure over earlier waits.
func isLastOfACycle(g *Graph, all []*fake, of *fake) bool {
	reach := make(map[*fake]bool)
	edge := func(a, b *fake) bool {
		return slices.ContainsFunc(a.blockers, func(o string) bool { return slices.Contains(b.keeps, o) })
	}
	earlier := func(f *fake) bool { return f == of || g.step(&f.Wait, "").before(g.step(&of.Wait, "")) }
	for range all {
		for _, a := range all {
			for _, b := range all {
				if (a == of || reach[a] && earlier(a)) && edge(a, b) {
					reach[b] = true
				}
			}
		}
	}
	return reach[of]
}

// A cycle with a wait that ends during confirmation is not reported.
func TestConfirms(t *testing.T) {
	for name, end := range map[string]func(a, b *fake){
		"a wait ends":     func(a, _ *fake) { a.over = true },
		"a hold ends":     func(a, _ *fake) { a.keeps = nil },
		"the last's ends": func(_, b *fake) { b.keeps = nil },
		"not in its way":  func(a, _ *fake) { a.blockers = nil },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newFake(1, []string{"x"}, "y"), newFake(2, []string{"y"}, "x")
			g := New()
			g.Add(&a.Wait)
			g.Add(&b.Wait)
			require.Equal(t, 2, len(g.find(b)))
			require.Nil(t, g.find(a))
			a.asked = func() { end(a, b) }
			b.asked = a.asked
			require.Nil(t, g.find(b))
		})
	}
}

// Cycles of up to Most waits are found; longer cycles are not.
func TestDepth(t *testing.T) {
	for _, n := range []int{Most, Most + 1} {
		g := New()
		var last *fake
		for i := range n {
			last = newFake(i, []string{fmt.Sprint("h", i)}, fmt.Sprint("h", (i+1)%n))
			g.Add(&last.Wait)
		}
		require.Equal(t, n == Most, g.find(last) != nil)
	}
}

// A section that fans out into n Locks, all in one deadlock, is searched in time proportional to n.
func TestFanOut(t *testing.T) {
	const n = 3000
	g, looks := New(), 0
	all := []*fake{newFake(0, []string{"b"}, "a")}
	for i := range n {
		all = append(all, newFake(1+i, []string{"a"}, "b"))
	}
	for _, f := range all {
		f.looks = &looks
		g.Add(&f.Wait)
	}
	for _, f := range all {
		require.Equal(t, f != all[0], g.find(f) != nil)
	}
	require.True(t, looks <= 10*n, looks)
}
