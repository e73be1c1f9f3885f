package main

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func start(t *testing.T, command ...string) *process {
	t.Helper()
	p, err := startProcess(command)
	require.NoError(t, err)
	t.Cleanup(p.end)
	return p
}

func TestWorkerThatSaysNothingIsEnded(t *testing.T) {
	p := start(t, "cat")
	err := p.ready(50 * time.Millisecond)
	require.ErrorContains(t, err, "says nothing")
	assert.NotNil(t, p.cmd.ProcessState)
}

func TestWorkerThatSaysTheWrongThing(t *testing.T) {
	require.ErrorContains(t, start(t, "echo", "hello").ready(10*time.Second), `"hello"`)
	_, err := start(t, "echo", "{not JSON").report(10 * time.Second)
	require.ErrorContains(t, err, "{not JSON")
	_, err = start(t, "echo", `{"error":"no lock for you"}`).report(10 * time.Second)
	require.EqualError(t, err, "no lock for you")
	require.ErrorContains(t, start(t, "sh", "-c", "echo why >&2; exit 7").ready(10*time.Second), "exit status 7: why")
}

func TestWorkerReportsAndWaits(t *testing.T) {
	p := start(t, "sh", "-c", `echo ready; read go; echo "{\"ops\":3,\"extra\":{\"said\":$go}}"; cat`)
	require.NoError(t, p.ready(10*time.Second))
	require.NoError(t, p.say("5"))
	r, err := p.report(10 * time.Second)
	require.NoError(t, err)
	assert.EqualValues(t, 3, r.Ops)
	assert.InDelta(t, 5, r.Extra["said"], 0)
	p.end()
	assert.True(t, p.cmd.ProcessState.Success(), "it ends by itself when its input does")
}

func TestCommandsSentAreNotThoseOfScripts(t *testing.T) {
	b := startBench(t, options{})
	rdb, err := dial(b.server.addr)
	require.NoError(t, err)
	defer rdb.Close()
	before, err := b.server.commands()
	require.NoError(t, err)
	const n = 7
	s, err := loadScript(rdb, `redis.call('set', KEYS[1], '1') return redis.call('get', KEYS[1])`)
	require.NoError(t, err)
	for range n {
		require.NoError(t, s.call(context.Background(), "key").Error())
	}
	require.NoError(t, rdb.Do(context.Background(), rdb.B().Del().Key("key").Build()).Error())
	after, err := b.server.commands()
	require.NoError(t, err)
	delta := after.since(before)
	assert.EqualValues(t, n, delta["set"], "Redis counts commands called by scripts")
	assert.EqualValues(t, n, delta.sent(nil))
	assert.EqualValues(t, n+1, delta.sent([]string{"del"}))
	assert.NotContains(t, delta, "info")
}

func TestPlanMeasuresNothingTwice(t *testing.T) {
	o := options{rounds: 5, duration: time.Second, long: 2 * time.Second, curves: true}
	groups, err := plan(&o)
	require.NoError(t, err)
	seen := make(map[cell]bool)
	for _, g := range groups {
		for _, c := range g.cells {
			c.Duration = 0
			assert.False(t, seen[c], c)
			seen[c] = true
			assert.NotEqual(t, redissonName, c.Lib, "without its worker it is left out")
		}
	}
	for _, c := range curves(&o) {
		for _, point := range c.cells() {
			point.Lib, point.Duration = rlockName, 0
			assert.True(t, seen[point], "%s %v", c.name, point)
		}
	}
	o.workloads = []string{"contended-1ms"}
	o.libs = []string{rlockName}
	groups, err = plan(&o)
	require.NoError(t, err)
	require.Len(t, groups, 1)
	require.Len(t, groups[0].cells, 1)
	assert.Equal(t, time.Millisecond, groups[0].cells[0].RTT)
	o.workloads = []string{"nothing"}
	_, err = plan(&o)
	require.ErrorContains(t, err, "nothing")
}

func TestOneWhoFailsAlwaysFailsTheRun(t *testing.T) {
	ok, bad, odd := pairOf("bsm", 1, 1), pairOf("bsm", 2, 1), pairOf("bsm", 3, 1)
	bad.Error, odd.Violations = "it broke", 1
	rlockBroke := pairOf(rlockName, 1, 1)
	rlockBroke.Violations = 1
	for _, c := range []struct {
		samples []sample
		failed  bool
	}{
		{[]sample{ok}, false},
		{[]sample{ok, bad, odd}, false},
		{[]sample{bad}, true},
		{[]sample{ok, rlockBroke}, true},
	} {
		b := bench{samples: c.samples}
		assert.Equal(t, c.failed, b.failed(), c.samples)
	}
}
