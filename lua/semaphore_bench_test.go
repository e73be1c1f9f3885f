package lua_test

import (
	"context"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
	"github.com/go-rlock/rlock/lua"
)

// BenchmarkSemaphoreServerCPU measures a call's cost for the server, network included, next to scripts that do only as much as
// Redisson's. It takes and returns one permit.
func BenchmarkSemaphoreServerCPU(b *testing.B) {
	c := redistest.Start(b).Client(b)
	ctx := b.Context()
	bare := []*rueidis.Lua{
		rueidis.NewLuaScript("if tonumber(redis.call('get', KEYS[1])) >= tonumber(ARGV[1]) then redis.call('decrby', KEYS[1], ARGV[1]) return 1 end return 0"),
		rueidis.NewLuaScript("return redis.call('publish', ARGV[2], redis.call('incrby', KEYS[1], ARGV[1]))"),
	}
	args := func(name string) lua.SemaphoreArgs {
		return lua.SemaphoreArgs{Semaphore: lua.Semaphore{
			Name: name, Requests: "requests", Queue: "queue", Publish: lua.Publish{Name: "channel"}, Client: client(1), Keep: keep,
		}}
	}
	s, p := args("s"), lua.PermitsArgs{SemaphoreArgs: args("p"), Timeouts: "timeouts", Slots: "slots", Lease: lease}
	p.Requests, p.Queue = "requests of p", "queue of p"
	next := func(a *lua.SemaphoreArgs, wants ...int64) {
		a.Wants = wants
		a.Request++
	}
	for name, call := range map[string]func(give bool) error{
		"script=bare": func(give bool) error {
			if give {
				return bare[1].Exec(ctx, c, []string{"s"}, []string{"1", "channel"}).Error()
			}
			return bare[0].Exec(ctx, c, []string{"s"}, []string{"1"}).Error()
		},
		"script=semaphore": func(give bool) error {
			if next(&s, 1); give {
				s.N, s.Wants = 1, nil
			} else {
				s.N = 0
			}
			_, err := lua.UseSemaphore(ctx, c, s)
			return err
		},
		"script=permits": func(give bool) error {
			if next(&p.SemaphoreArgs, 1); give {
				p.Release, p.Wants, p.IDs = p.IDs, nil, nil
			} else {
				p.Release, p.IDs = nil, ids(int(p.Request), int(p.Request))
			}
			_, err := lua.UsePermits(ctx, c, p)
			return err
		},
		"script=lock": func(give bool) (err error) {
			if give {
				_, err = lua.Release(ctx, c, lua.ReleaseArgs{Name: "l", Owner: me, Publish: lua.Publish{Name: "channel"}, Queue: lua.Queue{Key: "q", GrantLease: keep}})
			} else {
				_, err = lua.Acquire(ctx, c, lua.AcquireArgs{Name: "l", Owner: me, Count: 1, Lease: lease, Queue: "q", GrantLease: keep})
			}
			return err
		},
	} {
		b.Run(name, func(b *testing.B) {
			for _, name := range []string{"s", "p"} {
				require.NoError(b, c.Do(ctx, c.B().Set().Key(name).Value("10").Build()).Error())
			}
			before, calls := serverCPU(ctx, b, c), 0
			for b.Loop() {
				require.NoError(b, call(calls%2 == 1))
				calls++
			}
			b.ReportMetric((serverCPU(ctx, b, c)-before)/float64(calls)*1e6, "server-µs/op")
		})
	}
}

// serverCPU returns the server's CPU time in seconds.
func serverCPU(ctx context.Context, b *testing.B, c rueidis.Client) (seconds float64) {
	b.Helper()
	info, err := c.Do(ctx, c.B().Info().Section("cpu").Build()).ToString()
	require.NoError(b, err)
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_cpu_user" || name == "used_cpu_sys" {
			n, err := strconv.ParseFloat(value, 64)
			require.NoError(b, err)
			seconds += n
		}
	}
	return seconds
}
