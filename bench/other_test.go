package main

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// syncedName is a library with its own server, which needs only Redis.
const syncedName = "rlock-fsync"

func TestCrashIsTimedFromTheKill(t *testing.T) {
	b := startBench(t, options{})
	s := b.measure(cell{Workload: "crash", Lib: rlockName, Processes: 1, Goroutines: 3, Lease: 2 * time.Second, Duration: 20 * time.Second}, 1)
	require.Empty(t, s.Error)
	assert.Zero(t, s.Violations)
	assert.Zero(t, s.Stuck)
	assert.EqualValues(t, 3, s.Ops)
	// A third of the lease may have passed since the last renewal.
	assert.Greater(t, s.Extra["least_ns"], 1e9, "no waiter gets the lock before the lease expires")
	assert.GreaterOrEqual(t, float64(s.Latency.Max), s.Extra["least_ns"])
}

func TestCrashWithoutExclusionFails(t *testing.T) {
	b := startBench(t, options{})
	s := b.measure(cell{Workload: "crash", Lib: "none", Processes: 1, Goroutines: 1, Lease: time.Second, Duration: 20 * time.Second}, 1)
	assert.Contains(t, s.Error, "which is held")
}

func TestOtherServersRunOnlyIfNamed(t *testing.T) {
	o := options{rounds: 1, duration: time.Second, long: time.Second, curves: true}
	groups, err := plan(&o)
	require.NoError(t, err)
	for _, g := range groups {
		for _, c := range g.cells {
			lib, err := findLibrary(c.Lib)
			require.NoError(t, err)
			assert.Nil(t, lib.start, c)
			assert.NotEqual(t, "crash", c.Workload, "it takes minutes")
		}
	}
	b := startBench(t, options{})
	c := cell{Workload: "pair", Lib: syncedName, Processes: 1, Goroutines: 1, Duration: 100 * time.Millisecond}
	assert.Contains(t, b.measure(c, 1).Error, "only if -libs names it")

	b = startBench(t, options{libs: []string{rlockName, syncedName}})
	s := b.measure(c, 1)
	require.Empty(t, s.Error)
	assert.InDelta(t, 2, s.sentPerOp(), 0.01, "its own server counts: %v", s.Commands)
	assert.NotEqual(t, b.server.addr, b.others[syncedName].addr)
	m, err := b.machine()
	require.NoError(t, err)
	assert.Equal(t, m.Redis, m.Others[syncedName])
	assert.Positive(t, m.Sync)
	assert.Contains(t, (&results{Machine: m}).tables(), "rlock-fsync on Redis "+m.Redis)
}

func TestMissingProgramNamesItsPackage(t *testing.T) {
	t.Setenv("PATH", "")
	_, err := findProgram("etcd", "etcd-server", t.TempDir())
	require.EqualError(t, err,
		"etcd is not installed; on Debian it is in the package etcd-server, and without it leave its library out of -libs")
}

func TestServerThatDoesNotStartIsTold(t *testing.T) {
	_, err := startProgram(exec.Command("sh", "-c", "echo no room; exit 3"), syscall.SIGTERM, func() error { return nil })
	require.ErrorIs(t, err, errEnded)
	assert.Contains(t, err.Error(), "no room")
}

// Commands that a server does not count are not shown as zero.
func TestUncountedIsLeftEmpty(t *testing.T) {
	s := pairOf("postgres", 1, 100)
	s.Sent = uncounted
	r := results{samples: []sample{s}}
	row := line(t, r.tables(), "postgres")
	assert.Equal(t, []string{"postgres", "100.0", "", "", "200.0", "", "3.0"}, row[:7])
	assert.NotContains(t, r.goBenchmark(), "cmds/op")
}

func TestEtcdCountsWhatItReceives(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, "/metrics", r.URL.Path)
		_, _ = io.WriteString(w, `# TYPE grpc_server_msg_received_total counter
grpc_server_msg_received_total{grpc_method="Txn",grpc_service="etcdserverpb.KV",grpc_type="unary"} 1.5e+06
grpc_server_msg_received_total{grpc_method="Watch",grpc_service="etcdserverpb.Watch",grpc_type="bidi_stream"} 7
grpc_server_msg_sent_total{grpc_method="Watch",grpc_service="etcdserverpb.Watch",grpc_type="bidi_stream"} 9
`)
	}))
	defer server.Close()
	counted, err := etcdMessages(strings.TrimPrefix(server.URL, "http://"))
	require.NoError(t, err)
	assert.Equal(t, commands{"txn": 1500000, "watch": 7}, counted)
}

func TestZookeeperCountsWhatItReceives(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	go func() { // ends with the answer
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.ReadFull(conn, make([]byte, len("srvr")))
		_, _ = io.WriteString(conn, "Zookeeper version: 3.8.0-${id}, built on 2024-12-29\nLatency min/avg/max: 0/0.0/0\nReceived: 42\nSent: 41\n")
	}()
	version, received, err := zookeeperSays(l.Addr().String())
	require.NoError(t, err)
	assert.Equal(t, "3.8.0", version)
	assert.EqualValues(t, 42, received)
}
