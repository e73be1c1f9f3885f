package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

const usageTop = `usage: rlock top [flags]

Shows the locks with waiters, most contended first, their holders, and how long
these have held them. It refreshes every second until q or Ctrl-C. Waiters are
counted by their unlock channels, so Redisson's are included; a process counts
for half a second after its last waiter has gone. DEADLOCK numbers the locks
whose sections wait for each other, in programs with Options.Deadlock; see
"rlock deadlocks".

  -n N         look N times (default: until q on a terminal, otherwise once)
  -json        print one line of JSON per lock and look
` + usageTarget + `
SINCE is how long rlock top has seen this holder; each hand-over starts it
again. Piped, columns are separated by tabs, without a header.

exit code  0   2 usage   125 Redis, or a node of the cluster, failed
`

const (
	topInterval = time.Second // between two looks
	topMost     = 1000        // locks read per look
)

// wanted is a lock with waiters.
type wanted struct {
	state
	Waiting int64   `json:"waiting_processes"`
	Since   float64 `json:"seen_s"`          // seconds since its holders were first seen
	Error   string  `json:"error,omitempty"` // why the holder is unknown

	Deadlock int `json:"deadlock,omitempty"` // number of the deadlock of one of its holders, from 1
}

// top is the state kept between looks.
type top struct {
	*viewer
	since map[string]sighting // by key
}

// sighting is when a lock's holders were first seen.
type sighting struct {
	owners string
	at     time.Time
}

func (p *program) top(args []string) int {
	var t target
	flags := p.flags("top", &t)
	times := flags.Int("n", 0, "")
	asJSON := flags.Bool("json", false, "")
	if code, ok := p.parse(flags, args); !ok {
		return code
	}
	live := isTerminal(p.out) && p.getenv("TERM") != "dumb" && *times == 0 && !*asJSON
	switch {
	case flags.NArg() > 0:
		return p.misuse(errors.New("top takes flags only"), "top")
	case *times < 0:
		return p.misuse(errors.New("-n can't be negative"), "top")
	case *times == 0 && !live:
		*times = 1
	}
	if live { // looks run in the background, so it exits at once after it has left the screen
		ctx, stop := interruptible()
		defer stop()
		v, code, ok := p.open(ctx, t)
		if !ok {
			return code
		}
		defer v.close()
		return p.topLive(ctx, &top{v, make(map[string]sighting)})
	}
	return p.interruptibly(func(ctx context.Context, _ func()) int {
		v, code, ok := p.open(ctx, t)
		if !ok {
			return code
		}
		defer v.close()
		view := &top{v, make(map[string]sighting)}
		ticker := time.NewTicker(topInterval)
		defer ticker.Stop()
		for i := 0; ; {
			seen, err := view.look(ctx)
			switch {
			case err != nil:
				return p.failed(ctx, v.at(err))
			case *asJSON:
				for i := range seen.locks {
					p.json(seen.locks[i])
				}
			default:
				table(p.out, topHeader, topRows(seen.locks), isTerminal(p.out))
			}
			if seen.left > 0 {
				fmt.Fprintf(p.err, "rlock: showing the %d most contended locks; %d more have waiters\n", len(seen.locks), seen.left)
			}
			if err := seen.deadlocks.err; err != nil {
				p.fail(0, fmt.Errorf("deadlocks are unknown: %w", err))
			}
			code := p.tellMissing(seen.missing)
			if i++; i == *times {
				return code
			}
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return endCode(ctx)
			}
		}
	})
}

// sight is the result of a look.
type sight struct {
	locks     []wanted
	left      int // number of further locks with waiters
	at        time.Time
	deadlocks circles
	missing   []error // what is not in it
}

// look finds the locks with waiters.
func (t *top) look(ctx context.Context) (sight, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	circles := t.circles(ctx) // concurrently with the rest
	channels, missing, err := t.listening(ctx)
	if err != nil {
		return sight{}, err
	}
	waiting, counters := make(map[string]int64), make(map[string]string) // by key
	for channel, l := range channels {
		for _, key := range keysOf(channel) {
			switch {
			case strings.HasPrefix(channel, latchChannel):
				counters[key] = latchKind
			case strings.HasPrefix(channel, semaphoreChannel+":"):
				counters[key] = semaphoreKind
			}
			if many := l.count(); many > 0 && strings.HasPrefix(key, t.prefix) {
				waiting[key] += many
			}
		}
	}
	// Only the most wanted ones, to keep a look fast.
	keys := slices.SortedFunc(maps.Keys(waiting), func(a, b string) int {
		return cmp.Or(cmp.Compare(waiting[b], waiting[a]), strings.Compare(a, b))
	})
	seen, all := sight{at: time.Now(), missing: missing}, waiting
	waiting = make(map[string]int64)
	second := func(key string) bool { // the other of the two names of one channel
		return strings.HasPrefix(key, "{") && all[twin(key)] > 0
	}
	for _, key := range keys {
		switch {
		case second(key):
		case len(waiting) == topMost:
			seen.left++
		default:
			waiting[key] = all[key]
		}
	}
	for _, key := range keys {
		if second(key) && waiting[twin(key)] > 0 {
			waiting[key] = all[key]
		}
	}
	looked := slices.Sorted(maps.Keys(waiting))
	held, failed := t.read(ctx, looked)
	for i := range held {
		held[i].waitedAs(counters[held[i].key])
	}
	seen.locks = t.wanted(waiting, held, failed)
	at := make([]*state, len(seen.locks))
	for i := range seen.locks {
		at[i] = &seen.locks[i].state
	}
	t.addLabels(ctx, at...)
	noteUnlabelledBeside(at)
	seen.deadlocks = <-circles
	seen.deadlocks.mark(seen.locks)
	return seen, nil
}

// listening asks all nodes, as waiters may listen at any of a cluster. It fails if none answers.
func (v *viewer) listening(ctx context.Context) (channels map[string]*listeners, missing []error, err error) {
	all := nodes(v.rdb)
	found := make([]map[string]*listeners, len(all))
	down := each(ctx, all, func(ctx context.Context, i int) error {
		mine := make(map[string]*listeners)
		if err := all[i].listening(ctx, mine); err != nil {
			return fmt.Errorf("PUBSUB: %w", err)
		}
		found[i] = mine
		return nil
	})
	if len(down) == len(all) {
		return nil, nil, down[0]
	}
	return joined(found), v.missing(ctx, down), nil
}

// missing says what the answers of the nodes leave out: unlike locks, waiters can be at replicas, too.
func (v *viewer) missing(ctx context.Context, down []nodeError) (all []error) {
	if v.rdb.Mode() != rueidis.ClientModeCluster {
		return nil
	}
	d, err := deployed(ctx, v.rdb)
	if err != nil {
		return []error{err}
	}
	for _, err := range down {
		all = append(all, fmt.Errorf("missing: who waits at %w", err))
	}
	if d.down = nil; d.unserved > 0 {
		all = append(all, d.missing()...)
	}
	return all
}

// wanted combines the results, and remembers the holders.
func (t *top) wanted(waiting map[string]int64, held []state, failed map[string]error) []wanted {
	now, since := time.Now(), make(map[string]sighting)
	locks, known := []wanted{}, make(map[string]bool)
	for _, s := range held {
		seen := sighting{fmt.Sprint(s.owners()), now}
		if before := t.since[s.key]; before.owners == seen.owners {
			seen.at = before.at
		}
		since[s.key] = seen
		locks = append(locks, wanted{state: s, Waiting: waiting[s.key], Since: now.Sub(seen.at).Seconds()})
		known[s.key] = true
	}
	for key, many := range waiting {
		_, both := waiting[twin(key)] // one channel, two names: take the held one, otherwise the plain one
		if known[key] || both && (known[twin(key)] || strings.HasPrefix(key, "{")) {
			continue
		}
		w := wanted{state: t.named(key), Waiting: many}
		w.Holders = []holder{}
		if err := failed[key]; err != nil {
			w.Error = err.Error()
		}
		locks = append(locks, w)
	}
	t.since = since
	slices.SortFunc(locks, func(a, b wanted) int {
		return cmp.Or(cmp.Compare(b.Waiting, a.Waiting), strings.Compare(a.Name, b.Name))
	})
	return locks
}

// twin returns the other key with the same channel, if any.
func twin(key string) string {
	if inner, ok := strings.CutPrefix(key, "{"); ok {
		return strings.TrimSuffix(inner, "}")
	}
	return "{" + key + "}"
}
