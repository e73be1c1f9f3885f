package deadlock

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/testing/require"
)

// world carries probes between several processes. It may lose, duplicate or reorder some.
type world struct {
	graphs map[string]*Graph // indexed by the owner's Client
	said   []said
}

type said struct{ client, text string }

// say sends a probe to the process of an owner.
func (w *world) say(owner, text string) {
	client, _, _ := strings.Cut(owner, ":")
	w.said = append(w.said, said{client, text})
}

func (w *world) carry(random *rand.Rand, lossy bool) {
	for n := 0; len(w.said) > 0 && n < 10000; n++ {
		i := 0
		if lossy {
			i = random.IntN(len(w.said))
		}
		s := w.said[i]
		w.said = slices.Delete(w.said, i, i+1)
		if lossy {
			switch random.IntN(6) {
			case 0:
				continue
			case 1:
				w.said = append(w.said, s)
			}
		}
		if g := w.graphs[s.client]; g != nil {
			g.Hear(s.text)
		}
	}
}

// In random graphs over several processes, exactly the last wait of each cycle finds it, even if some rounds lose probes.
func TestProbes(t *testing.T) {
	found, far := 0, 0
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 2))
		n := 2 + random.IntN(7)
		whole, w := New(), &world{graphs: make(map[string]*Graph)}
		all := make([]*fake, n)
		client := func(i int) string { return fmt.Sprint("c", i) }
		for i := range all {
			var blockers []string
			for range 1 + random.IntN(2) {
				blockers = append(blockers, client(random.IntN(n+1))+":7")
			}
			f := newFake(random.IntN(4), []string{client(i) + ":7"}, blockers...)
			f.Number, f.Secret, f.Client = uint64(i), random.Uint64(), client(i)
			f.says = w.say
			if i == 0 || random.IntN(3) > 0 {
				w.graphs[client(i)] = New()
			} else { // in the previous wait's process
				w.graphs[client(i)] = w.graphs[client(i-1)]
			}
			w.graphs[client(i)].Add(&f.Wait)
			whole.Add(&f.Wait)
			all[i] = f
		}
		for _, f := range all {
			want := isLastOfACycle(whole, all, f)
			g := w.graphs[f.Client]
			for round := 1; round <= 60 && f.found == nil; round++ {
				if !g.SearchCycle(&f.Wait, 0) {
					g.SearchCycle(&f.Wait, round)
					w.carry(random, round < 50)
				}
				if !want && round > 5 {
					break
				}
			}
			require.Equal(t, want, f.found != nil, seed)
			if !want {
				continue
			}
			found++
			clients := make(map[*Graph]bool)
			for i, s := range f.found {
				at := slices.IndexFunc(all, func(o *fake) bool { return s.is(&o.Wait) })
				require.True(t, slices.Contains(all[at].blockers, f.found[(i+1)%len(f.found)].Owner), seed)
				clients[w.graphs[s.Client]] = true
			}
			if len(clients) > 1 {
				far++
			}
		}
	}
	require.True(t, found > 90 && far > 45, found, far)
}

// A cycle that breaks anywhere before the second lap completes is not reported.
func TestProbesConfirm(t *testing.T) {
	for name, end := range map[string]func(f *fake){
		"nothing":                          nil,
		"a wait":                           func(f *fake) { f.over = true },
		"a hold":                           func(f *fake) { f.keeps = nil },
		"what blocks it":                   func(f *fake) { f.blockers = nil },
		"another wait under the same hold": func(f *fake) { f.Secret++ },
	} {
		for victim := range 3 {
			t.Run(fmt.Sprint(name, victim), func(t *testing.T) {
				w := &world{graphs: make(map[string]*Graph)}
				all := make([]*fake, 3)
				laps := 0
				for i := range all {
					f := newFake(i, []string{fmt.Sprint("c", i, ":1")}, fmt.Sprint("c", (i+1)%3, ":1"))
					f.Client = fmt.Sprint("c", i)
					f.says = func(owner, text string) {
						if strings.Contains(text, `"b":true`) {
							if laps++; laps == 1 && end != nil {
								end(all[victim])
							}
						}
						w.say(owner, text)
					}
					w.graphs[f.Client] = New()
					w.graphs[f.Client].Add(&f.Wait)
					all[i] = f
				}
				w.graphs["c2"].SearchCycle(&all[2].Wait, 1)
				w.carry(nil, false)
				require.True(t, laps > 0)
				require.Equal(t, end == nil, all[2].found != nil)
			})
		}
	}
}

// A wait overtaken by another hold detects the cycle when it is asked, in this process or another.
func TestOvertaken(t *testing.T) {
	for _, one := range []bool{true, false} {
		w := &world{graphs: make(map[string]*Graph)}
		all, g := make([]*fake, 3), New()
		for i := range all {
			f := newFake(i, []string{fmt.Sprint("c", i, ":1")}, "gone:1")
			f.Client, f.overtaken = fmt.Sprint("c", i), []string{fmt.Sprint("c", (i+1)%3, ":1")}
			f.says = w.say
			if !one {
				g = New()
			}
			w.graphs[f.Client] = g
			g.Add(&f.Wait)
			all[i] = f
		}
		last := w.graphs["c2"]
		require.False(t, last.SearchCycle(&all[2].Wait, 0))
		require.Equal(t, one, last.SearchCycle(&all[2].Wait, 1))
		w.carry(nil, false)
		require.Equal(t, 3, len(all[2].found))
	}
}

// Arbitrary messages do no harm.
func FuzzHear(f *testing.F) {
	a := newFake(1, []string{"a:1"}, "b:1")
	p := probe{Version: version, Owner: "a:1", Steps: []Step{{Client: "b", Hold: Hold{Owner: "b:1"}}}}
	a.says = func(_, text string) { f.Add(text) }
	p.say(&a.Wait, "b:1")
	p.Back = true
	p.say(&a.Wait, "b:1")
	f.Add(`{"v":1,"b":true,"a":9,"s":[]}`)
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		sent, g := 0, New()
		b := newFake(1, []string{"a:1"}, "b:1")
		b.says = func(_, text string) {
			sent++
			require.True(t, len(text) <= mostText)
		}
		g.Add(&b.Wait)
		g.Hear(text)
		require.True(t, sent <= mostProbes)
		require.True(t, b.found == nil)
	})
}

// Memory for received messages is bounded, however many arrive.
func TestHearRemembersLittle(t *testing.T) {
	g := New()
	a := newFake(1, []string{"a:1"}, "b:1")
	a.says = func(string, string) {}
	g.Add(&a.Wait)
	for i := range mostSeen + 10 {
		for _, client := range []string{strings.Repeat("x", mostClient), strings.Repeat("x", mostClient+1)} {
			p := probe{Version: version, Round: i, Owner: "a:1", Steps: []Step{{Client: client, WaitsBy: Micros{a.Began.Add(time.Second)}}}}
			text, err := json.Marshal(p)
			require.NoError(t, err)
			g.Hear(string(text))
		}
	}
	require.True(t, len(g.seen) > 0 && len(g.seen) <= mostSeen)
	for v := range g.seen {
		require.Equal(t, mostClient, len(v.client))
	}
}

// A Client's waits survive encoding. What an asker makes of them is tested with the command.
func TestSeen(t *testing.T) {
	const id = "9b1f0c1e-6a57-4c0e-8f7d-2f0d8c3b5a41"
	g := New()
	require.Equal(t, []string{"none " + id}, g.Answers(id))
	require.Equal(t, []string{"off " + id}, (*Graph)(nil).Answers(id))
	for i := range 3 {
		f := newFake(i, []string{fmt.Sprint("h", i), fmt.Sprint("i", i)}, fmt.Sprint("h", (i+1)%3))
		if i == 1 {
			f.Lock = strings.Repeat("long", 10000)
		}
		g.Add(&f.Wait)
	}
	other := newFake(3, []string{"x"}, "h0")
	other.Client = "another"
	g.Add(&other.Wait)
	answers := g.Answers("c")
	require.Equal(t, 3, len(answers))
	for i, text := range answers {
		require.True(t, len(text) < 8<<10)
		json, ok := strings.CutPrefix(text, fmt.Sprintf("is %d 3 ", i+1))
		require.True(t, ok && json[0] == '{')
	}
	got, ok := ReadQuestion("ask " + id)
	require.True(t, ok && got == id)
	for _, text := range []string{"", "ask", "ask ", "ask " + id + " ", "ask " + strings.ToUpper(id), "ask " + strings.Repeat("x", 36)} {
		_, ok := ReadQuestion(text)
		require.False(t, ok, text)
	}
}
