package rlock_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// The values of the options that are combined in pairs.
const (
	pairLease    = 2500 * time.Millisecond
	pairMaxHold  = 1500 * time.Millisecond
	pairMinHold  = 400 * time.Millisecond
	pairGrace    = 5 * time.Second
	pairMaxWait  = 200 * time.Millisecond
	pairWatchdog = 2 * time.Second
	pairTerm     = 300 * time.Millisecond
)

func pairedOptions() map[string]rlock.Option {
	return map[string]rlock.Option{
		"WithLease":      rlock.WithLease(pairLease),
		"WithMaxHold":    rlock.WithMaxHold(pairMaxHold),
		"WithMinHold":    rlock.WithMinHold(pairMinHold),
		"WithGrace":      rlock.WithGrace(pairGrace),
		"WithoutReentry": rlock.WithoutReentry(),
		"WithAsked":      rlock.WithAsked(),
		"WithLinger":     rlock.WithLinger(time.Hour),
		"WithWatchdog":   rlock.WithWatchdog(pairWatchdog),
		"WithMaxWait":    rlock.WithMaxWait(pairMaxWait),

		"WithWaitForRedis": rlock.WithWaitForRedis(),
		"WithAskedAfter":   rlock.WithAskedAfter(pairTerm),
	}
}

// pairKinds has the kinds of locks that take options, by column of the table, and the kind of a rival that each excludes.
var pairKinds = map[string]struct {
	of    func(c *rlock.Client, name string, o ...rlock.Option) *rlock.Mutex
	rival string
}{
	"Mutex":       {(*rlock.Client).Mutex, "Mutex"},
	"FencedMutex": {(*rlock.Client).FencedMutex, "FencedMutex"},
	"FairMutex":   {(*rlock.Client).FairMutex, "FairMutex"},
	"RWMutex reads": {func(c *rlock.Client, name string, o ...rlock.Option) *rlock.Mutex {
		return c.RWMutex(name, o...).Read()
	}, "RWMutex writes"},
	"RWMutex writes": {func(c *rlock.Client, name string, o ...rlock.Option) *rlock.Mutex {
		return c.RWMutex(name, o...).Write()
	}, "RWMutex reads"},
}

// pair is a lock with two options in one process, and its rival in another.
type pair struct {
	fixture
	redis *redistest.Server
	m     *rlock.Mutex
	rival *rlock.Mutex
	has   map[string]bool
}

// lease returns the longest time a hold is trusted without a renewal.
func (p *pair) lease() time.Duration {
	d := shortWatchdog
	switch {
	case p.has["WithLease"]:
		d = pairLease
	case p.has["WithWatchdog"]:
		d = pairWatchdog
	}
	if p.has["WithMaxHold"] {
		d = min(d, pairMaxHold)
	}
	return d
}

func (p *pair) lock(t *testing.T) (context.Context, rlock.UnlockFunc) {
	t.Helper()
	ctx, unlock := enter(t, context.Background(), p.m)
	return ctx, unlock
}

// optionEffects checks the effect of each option of a pair.
var optionEffects = map[string]func(t *testing.T, p *pair){
	"WithLease": func(t *testing.T, p *pair) {
		_, unlock := p.lock(t)
		before := p.pttl(t, p.name)
		sleep(shortWatchdog * 2 / 5) // long enough for a renewal
		require.Less(t, p.pttl(t, p.name), before-shortWatchdog/4, "the lease is not renewed")
		require.NoError(t, unlock())
	},
	"WithWatchdog": func(t *testing.T, p *pair) {
		ctx, unlock := p.lock(t)
		least, most := time.Duration(0), p.lease()
		if p.has["WithGrace"] {
			least, most = pairGrace, most+pairGrace
		}
		left := p.pttl(t, p.name)
		require.Greater(t, left, least)
		require.LessOrEqual(t, left, most)
		if !p.has["WithMaxHold"] {
			sleep(pairWatchdog + pairWatchdog/4)
			require.NoError(t, ctx.Err(), "the hold is renewed")
			require.LessOrEqual(t, p.pttl(t, p.name), most)
		}
		require.NoError(t, unlock())
	},
	"WithMaxHold": func(t *testing.T, p *pair) {
		began := time.Now()
		ctx, unlock := p.lock(t)
		<-ctx.Done()
		requireTook(t, pairMaxHold, began, time.Now())
		var lost *rlock.LostError
		require.ErrorAs(t, context.Cause(ctx), &lost)
		require.Equal(t, rlock.LostMaxHold, lost.Reason)
		require.ErrorIs(t, unlock(), rlock.ErrLost)
	},
	"WithMinHold": func(t *testing.T, p *pair) {
		began := time.Now()
		_, unlock := p.lock(t)
		require.NoError(t, unlock())
		requireTook(t, 0, began, time.Now())
		lockAsync(t, p.rival).getAndUnlock(t, testTimeout)
		require.GreaterOrEqual(t, time.Since(began), pairMinHold, "the lock stays taken for that long")
	},
	"WithGrace": func(t *testing.T, p *pair) {
		_, unlock := p.lock(t)
		left := p.pttl(t, p.name)
		require.Greater(t, left, pairGrace)
		require.LessOrEqual(t, left, p.lease()+pairGrace)
		require.NoError(t, unlock())
	},
	"WithoutReentry": func(t *testing.T, p *pair) {
		ctx, unlock := p.lock(t)
		requireLockFails(t, ctx, p.m, rlock.ErrReentry)
		require.NoError(t, unlock())
	},
	"WithAsked": func(t *testing.T, p *pair) {
		ctx, unlock := p.lock(t)
		waiter := lockAsync(t, p.rival)
		awaitAsked(t, ctx)
		require.NoError(t, unlock())
		waiter.getAndUnlock(t, testTimeout)
	},
	"WithAskedAfter": func(t *testing.T, p *pair) {
		ctx, unlock := p.lock(t)
		began := time.Now()
		awaitEar(t, p.rdb, p.Client) // otherwise two looks find the waiter, a second apart
		waiter := lockAsync(t, p.rival)
		awaitAsked(t, ctx)
		requireTook(t, pairTerm, began, time.Now())
		require.NoError(t, unlock())
		waiter.getAndUnlock(t, testTimeout)
	},
	"WithLinger": func(t *testing.T, p *pair) {
		keep(t, p.Client, p.m)
		lockAsync(t, p.rival).getAndUnlock(t, testTimeout)
	},
	"WithWaitForRedis": func(t *testing.T, p *pair) {
		p.redis.Pause()
		waiter := lockAsync(t, p.m)
		if p.has["WithMaxWait"] {
			require.ErrorIs(t, waiter.get(t, 2*time.Second).err, rlock.ErrUnreachable)
			p.redis.Resume()
			return
		}
		sleep(15 * time.Second) // longer than the leases: an answer to an early try is of no use
		waiter.stillWaits(t)
		p.redis.Resume()
		require.NoError(t, waiter.gets(t, 5*time.Second).unlock())
	},
	"WithMaxWait": func(t *testing.T, p *pair) {
		_, unlock := enter(t, context.Background(), p.rival)
		began := time.Now()
		requireLockFails(t, context.Background(), p.m, rlock.ErrNotAcquired)
		requireTook(t, pairMaxWait, began, time.Now())
		require.NoError(t, unlock())
	},
}

// optionTable parses the table of docs/locks.md: which kinds accept an option, and the options that exclude it.
func optionTable(t *testing.T) (kinds, not map[string]map[string]bool) {
	t.Helper()
	text := answer(os.ReadFile("../docs/locks.md")).ok(t)
	_, section, ok := strings.Cut(string(text), "### Options together\n")
	require.True(t, ok)
	section, _, _ = strings.Cut(section, "\n#")
	kinds, not = make(map[string]map[string]bool), make(map[string]map[string]bool)
	var columns []string
	for line := range strings.Lines(section) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.Trim(cells[i], " `")
		}
		switch {
		case len(cells) < 3 || strings.HasPrefix(cells[0], "---"):
		case columns == nil:
			columns = cells
		default:
			option, last := cells[0], len(cells)-1
			kinds[option], not[option] = make(map[string]bool), make(map[string]bool)
			for i, cell := range cells[1:last] {
				for kind := range strings.SplitSeq(columns[i+1], ", ") {
					require.Contains(t, []string{"yes", "no"}, cell[:min(len(cell), 3)], option)
					kinds[option][kind] = cell == "yes"
				}
			}
			for other := range strings.SplitSeq(strings.ReplaceAll(cells[last], "`", ""), ", ") {
				not[option][other] = other != ""
			}
		}
	}
	return kinds, not
}

// G2, G3, G4: on each kind of lock, two options work together or are refused together, as the table of docs/locks.md says. Each has
// the same effect as alone.
func TestOptionsInPairs(t *testing.T) {
	options := pairedOptions()
	kinds, not := optionTable(t)
	for option := range options {
		require.Contains(t, kinds, option)
		require.Contains(t, optionEffects, option)
		for other := range options {
			require.Equal(t, not[option][other], not[other][option], "%s and %s", option, other)
		}
	}
	require.Len(t, kinds, len(options), "the table has each option")
	for kind, row := range pairKinds {
		column, _, _ := strings.Cut(kind, " ")
		for first := range options {
			for second := range options {
				if first >= second {
					continue
				}
				fits := kinds[first][column] && kinds[second][column] && !not[first][second]
				for _, effect := range []string{first, second} {
					t.Run(fmt.Sprintf("%s/%s,%s/%s", kind, first, second, effect), func(t *testing.T) {
						redistest.OnlyVirtual(t, "there are hundreds", func(t *testing.T) {
							s := redistest.Start(t)
							b := fixture{rdb: s.Client(t), name: redistest.Name(t)}
							b.Client = newClient(t, b.rdb, rlock.Options{WatchdogTimeout: shortWatchdog})
							p := &pair{fixture: b, redis: s, has: map[string]bool{first: true, second: true}}
							p.m = row.of(p.Client, p.name, options[first], options[second])
							p.rival = pairKinds[row.rival].of(newClient(t, p.rdb), p.name)
							if fits {
								optionEffects[effect](t, p)
								return
							}
							_, _, err := p.m.Lock(context.Background())
							require.Regexp(t, `use (it without |With|one of them)`, err.Error())
							require.False(t, p.exists(t, p.name))
						})
					})
				}
			}
		}
	}
}

// PermitSemaphore and the members of a Quorum take the options that the table says.
func TestOptionsOfOtherKinds(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		kinds, _ := optionTable(t)
		ctx := context.Background()
		answer(b.PermitSemaphore(b.name+":permits").TrySetPermits(ctx, 1)).ok(t)
		others := []*rlock.Client{newClient(t, b.rdb), newClient(t, b.rdb)}
		for name, option := range pairedOptions() {
			section, permit, err := b.PermitSemaphore(b.name+":permits", option).Acquire(ctx)
			require.Equal(t, kinds[name]["PermitSemaphore"], err == nil, "%s: %v", name, err)
			if err == nil {
				require.NoError(t, section.Err())
				require.NoError(t, permit.Release())
			}
			quorum := rlock.Quorum(b.Mutex(b.name, option), others[0].Mutex(b.name+":2", option), others[1].Mutex(b.name+":3", option))
			_, unlock, err := quorum.Lock(ctx)
			require.Equal(t, kinds[name]["Quorum"], err == nil, "%s: %v", name, err)
			if err == nil {
				require.NoError(t, unlock())
			}
		}
	})
}
