package lua_test

import (
	"context"
	"testing"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/internal/require"
	"github.com/go-rlock/rlock/lua"
)

// notEmpty is a client that fails on an empty pipeline.
type notEmpty struct {
	rueidis.Client
	t *testing.T
}

func (c notEmpty) DoMulti(ctx context.Context, all ...rueidis.Completed) []rueidis.RedisResult {
	if len(all) == 0 {
		c.t.Error("a pipeline of nothing")
	}
	return c.Client.DoMulti(ctx, all...)
}

// ReleaseAll returns the result of Release for each lock, on several slots and on servers that do not know the script yet.
func TestReleaseAll(t *testing.T) {
	t.Parallel()
	for name, rdb := range map[string]rueidis.Client{
		"standalone": redistest.Start(t).Client(t),
		"no pool":    redistest.Start(t).Client(t, func(o *rueidis.ClientOption) { o.DisableAutoPipelining = true }),
		"cluster":    redistest.StartCluster(t, 3, 0).Client(t),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := notEmpty{rdb, t}
			require.Empty(t, lua.ReleaseAll(t.Context(), rdb, nil))
			kinds := []struct {
				at     state
				status lua.Released
				err    error
			}{
				{at: holding(me, "1", short), status: lua.Freed},
				{at: holding(other, "1", short), status: lua.NotHeld},
				{at: absent, status: lua.NotHeld},
				{at: text, err: lua.ErrForeign},
				{at: hash("customer"), status: lua.NotHeld},
			}
			before := redistest.Commands(t, rdb)
			for round := range 2 { // in the second one all servers know the script
				var all []lua.ReleaseArgs
				var ears []*ear
				for i := range 50 {
					l := newLab(t, rdb)
					kinds[i%len(kinds)].at(l)
					if i < len(kinds) {
						ears = append(ears, l.listen(false))
					}
					all = append(all, l.frees(me))
				}
				got := lua.ReleaseAll(t.Context(), rdb, all)
				require.Len(t, got, len(all))
				for i, r := range got {
					kind := kinds[i%len(kinds)]
					require.Equal(t, kind.status, r.Status)
					if kind.err == nil {
						require.NoError(t, r.Err)
					} else {
						require.ErrorIs(t, r.Err, kind.err)
						require.ErrorContains(t, r.Err, "release script: ")
					}
				}
				after := redistest.Commands(t, rdb)
				require.EqualValues(t, len(all), after["evalsha"]-before["evalsha"])
				require.Equal(t, round == 0, after["eval"] > before["eval"])
				require.Equal(t, []string{"0"}, ears[0].said())
				for _, e := range ears[1:] {
					require.Empty(t, e.said())
				}
				before = redistest.Commands(t, rdb)
			}
		})
	}
}

// A long pipeline needs no connection of the blocking pool, which may be exhausted.
func TestReleaseAllWithAnExhaustedPool(t *testing.T) {
	t.Parallel()
	for name, mod := range map[string]func(*rueidis.ClientOption){
		"long": func(*rueidis.ClientOption) {},
		"any":  func(o *rueidis.ClientOption) { o.BlockingPipeline = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, redistest.Dial(t, redistest.Shared(t), func(o *rueidis.ClientOption) { o.BlockingPoolSize = 1 }, mod))
			exhaust(t, l)
			l.hold(me, "1", short)
			all := make([]lua.ReleaseArgs, 3000)
			for i := range all {
				all[i] = l.frees(me)
			}
			got := lua.ReleaseAll(t.Context(), l.rdb, all)
			require.Equal(t, lua.ReleaseResult{ReleaseReply: freed}, got[0])
			require.Equal(t, lua.ReleaseResult{ReleaseReply: notHeld}, got[len(got)-1])
		})
	}
}

func TestReleaseAllOnAClosedClient(t *testing.T) {
	t.Parallel()
	rdb := redistest.Dial(t, redistest.Shared(t))
	rdb.Close()
	for _, r := range lua.ReleaseAll(t.Context(), rdb, make([]lua.ReleaseArgs, 3)) {
		require.Zero(t, r.ReleaseReply)
		require.ErrorIs(t, r.Err, rueidis.ErrClosing)
		require.ErrorContains(t, r.Err, "release script: ")
	}
}
