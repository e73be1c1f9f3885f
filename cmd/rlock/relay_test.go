package main

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRelay(t *testing.T) {
	t.Parallel()
	const term, hup = syscall.SIGTERM, syscall.SIGHUP
	start := time.Now()
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	type signals = []syscall.Signal
	for name, play := range map[string]func(r *relay, asks *int) signals{
		"to us alone": func(r *relay, asks *int) signals {
			r.got(term, false, at(0))
			r.due(at(249))
			require.Zero(t, *asks)
			r.due(at(250))
			require.Equal(t, 1, *asks)
			r.told(witnessAnswers, at(251))
			r.told(term, at(252)) // what we have sent
			return signals{term}
		},
		"to both, us first": func(r *relay, _ *int) signals {
			r.got(term, false, at(0))
			r.told(term, at(1))
			r.due(at(250))
			return nil
		},
		"to both, the group first": func(r *relay, _ *int) signals {
			r.told(term, at(0))
			r.got(term, false, at(249))
			r.due(at(1000))
			return nil
		},
		"the witness is late": func(r *relay, _ *int) signals {
			r.got(term, false, at(0))
			r.due(at(250))
			r.told(term, at(5200))
			r.told(witnessAnswers, at(5201))
			return nil
		},
		"the witness is stopped": func(r *relay, _ *int) signals {
			r.got(term, false, at(0))
			r.due(at(250))
			r.due(at(5249))
			r.due(at(5250))
			return signals{term}
		},
		"the witness goes": func(r *relay, _ *int) signals {
			r.got(term, false, at(0))
			r.witnessGone(at(1))
			r.got(hup, false, at(2))
			return signals{term, hup}
		},
		"one after another": func(r *relay, _ *int) signals {
			r.told(term, at(0))
			r.got(term, false, at(300))
			r.due(at(550))
			r.told(witnessAnswers, at(551))
			r.told(term, at(552))
			r.got(term, false, at(600))
			r.due(at(850))
			r.told(witnessAnswers, at(851))
			return signals{term, term}
		},
		"others do not count": func(r *relay, _ *int) signals {
			r.got(term, false, at(0))
			r.told(hup, at(1))
			r.got(term, false, at(100)) // as the kernel merges pending signals
			r.due(at(250))
			r.told(witnessAnswers, at(251))
			return signals{term}
		},
		"prompt": func(r *relay, _ *int) signals {
			r.got(term, true, at(0))
			r.told(term, at(1))
			r.got(term, true, at(2))
			return signals{term, term}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var sent signals
			asks := 0
			want := play(newRelay(func(s syscall.Signal) { sent = append(sent, s) }, func() { asks++ }), &asks)
			require.Equal(t, want, sent)
		})
	}
}
