package lua_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/go-rlock/rlock/internal/testing/require"
	"github.com/go-rlock/rlock/lua"
)

// Random calls of processes that receive their messages. Some calls are sent twice, cancelled or late, and some processes stop or die.
// Permits are neither lost nor made, and no process sleeps while its permits are free.
func TestSemaphoreIsLikeItsModel(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	s := sharedSem(t)
	m := &semModel{sem: s, random: random, total: 6}
	s.set(m.total)
	for i := range 5 {
		m.processes = append(m.processes, &semProcess{id: i + 1, ear: s.process(i + 1)})
	}
	for range 800 {
		m.step()
		m.check()
	}
	// If all processes stop asking for more and give back, every wait is served.
	for range 1000 {
		busy := false
		for _, p := range m.processes {
			if p.held > 0 {
				m.call(p, p.held, false)
			}
			m.hear()
			busy = busy || p.held > 0 || len(p.wants) > 0
		}
		m.check()
		if !busy {
			break
		}
	}
	for _, p := range m.processes {
		require.Zero(t, p.held)
		require.Empty(t, p.wants)
	}
	require.Equal(t, m.total, s.free())
	s.line()
}

// semProcess is a process of the model.
type semProcess struct {
	id    int
	ear   *ear
	wants []int64
	held  int64
}

// semModel is the expected state of a semaphore.
type semModel struct {
	sem
	random    *rand.Rand
	processes []*semProcess
	total     int64
	late      []lua.SemaphoreArgs // copies of calls that were sent more than once
}

func (m *semModel) step() {
	p := m.processes[m.random.IntN(len(m.processes))]
	switch m.random.IntN(10) {
	case 0, 1, 2, 3: // somebody wants permits
		if len(p.wants) < 4 {
			p.wants = append(p.wants, 1+m.random.Int64N(m.total))
		}
		m.call(p, 0, m.random.IntN(4) == 0)
	case 4, 5, 6: // some are given back
		if p.held > 0 {
			m.call(p, 1+m.random.Int64N(p.held), m.random.IntN(4) == 0)
		}
	case 7: // somebody gives up
		if len(p.wants) > 0 {
			p.wants = slices.Delete(p.wants, 0, 1)
			m.call(p, 0, false)
		}
	case 8: // a single try, cancelled
		a := m.request(p.id)
		a.Wants = []int64{1 + m.random.Int64N(m.total)}
		if m.random.IntN(2) == 0 {
			m.use(a)
		}
		m.late = append(m.late, a)
		a.Cancel = true
		m.use(a)
		m.hear()
	case 9: // a copy comes late
		if len(m.late) > 0 {
			m.use(m.late[m.random.IntN(len(m.late))])
			m.hear()
		}
	}
}

// call is one request of a process: it gives n back, and wants permits for its waiters. Then notified processes look.
func (m *semModel) call(p *semProcess, n int64, twice bool) {
	m.t.Helper()
	a := m.request(p.id)
	a.N, a.Wants, a.Waits = n, slices.Clone(p.wants), true
	r := m.use(a)
	if twice {
		again := m.use(a)
		require.Equal(m.t, r.Granted, again.Granted)
		m.late = append(m.late, a)
	}
	p.held -= n
	for _, i := range slices.Backward(r.Granted) {
		p.held += p.wants[i]
		p.wants = slices.Delete(p.wants, i, i+1)
	}
	m.hear()
}

// hear makes notified processes look.
func (m *semModel) hear() {
	m.t.Helper()
	for _, p := range m.processes {
		if slices.Contains(p.ear.said(), look) {
			m.call(p, 0, false)
		}
	}
}

func (m *semModel) check() {
	m.t.Helper()
	free, held, waits := m.free(), int64(0), 0
	for _, p := range m.processes {
		held += p.held
		if len(p.wants) > 0 {
			waits++
		}
	}
	require.GreaterOrEqual(m.t, free, int64(0))
	require.Equal(m.t, m.total, free+held)
	require.Equal(m.t, waits, len(m.places()))
	if free == 0 || waits == 0 {
		return
	}
	// After all notified processes have looked, the first want of the first process in line does not fit, or none would wait.
	first := m.places()[0]
	for _, p := range m.processes {
		if client(p.id) == first {
			require.Greater(m.t, p.wants[0], free, "%s sleeps while %d are free", first, free)
		}
	}
}
