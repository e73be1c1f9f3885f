package redistest

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/rueidis"
)

// MasterSet is the sentinels' name for the only master they watch.
const MasterSet = "mymaster"

// Sentinel is a master with two replicas, watched by three sentinels.
type Sentinel struct {
	nodes     []*admin
	sentinels []*admin
	cert, key string        // files, with TLS; each server then has a second port, which all tell each other and Addrs tells
	down      time.Duration // without an answer, after which the master is taken for dead
}

// StartSentinel starts the six processes. It returns when the replicas are in sync and all sentinels know them and each other. The args are
// appended to the command lines of the master and the replicas.
//
// The sentinels change the master when they are told to. By themselves they do so for one that has not answered for a minute: a busy machine
// may let it stand still for a second.
func StartSentinel(tb testing.TB, args ...string) *Sentinel {
	tb.Helper()
	s := &Sentinel{down: time.Minute}
	s.start(tb, args)
	return s
}

// StartWatchfulSentinel is StartSentinel with sentinels that promote a replica about 2 s after the master stops answering.
func StartWatchfulSentinel(tb testing.TB) *Sentinel {
	tb.Helper()
	s := &Sentinel{down: time.Second}
	s.start(tb, nil)
	return s
}

// StartTLSSentinel is StartSentinel with TLS among all of them, and for clients. All show one certificate, trust it, and ask for it.
func StartTLSSentinel(tb testing.TB) (s *Sentinel, cert, key string) {
	tb.Helper()
	_, cert, key = certificateFiles(tb)
	s = &Sentinel{cert: cert, key: key, down: time.Minute}
	s.start(tb, nil)
	return s, cert, key
}

// port is where clients, replicas and sentinels find the server whose first port is given.
func (s *Sentinel) port(first int) int {
	if s.cert != "" {
		return first + 1
	}
	return first
}

// secure returns the arguments for TLS.
func (s *Sentinel) secure(first int) []string {
	if s.cert == "" {
		return nil
	}
	return []string{
		"--tls-port", strconv.Itoa(s.port(first)), "--tls-replication", "yes",
		"--tls-cert-file", s.cert, "--tls-key-file", s.key, "--tls-ca-cert-file", s.cert,
	}
}

func (s *Sentinel) start(tb testing.TB, args []string) {
	tb.Helper()
	node := func(more ...string) *admin {
		return newAdmin(tb, start(tb, func(port int) []string { return slices.Concat(plainArgs(port), more, args, s.secure(port)) }))
	}
	master := node()
	s.nodes = []*admin{master}
	for range 2 {
		s.nodes = append(s.nodes, node("--replicaof", "127.0.0.1", strconv.Itoa(s.port(master.port))))
	}
	for _, n := range s.nodes[1:] {
		Eventually(tb, deployTimeout, n.synced, "replica has its data")
	}
	for range 3 {
		s.sentinels = append(s.sentinels, newAdmin(tb, s.startSentinel(tb, s.port(master.port))))
	}
	for _, n := range s.sentinels {
		Eventually(tb, deployTimeout, func() bool {
			m, err := n.do("SENTINEL", "MASTER", MasterSet).AsStrMap()
			return err == nil && m["num-slaves"] == "2" && m["num-other-sentinels"] == "2" && m["flags"] == "master"
		}, "sentinel knows all")
	}
}

// startSentinel starts one sentinel. It needs a configuration file, because it stores its state there.
func (s *Sentinel) startSentinel(tb testing.TB, master int) *Server {
	tb.Helper()
	conf := filepath.Join(tb.TempDir(), "sentinel.conf")
	text := fmt.Sprintf("bind 127.0.0.1\n"+
		"sentinel monitor %[1]s 127.0.0.1 %[2]d 2\n"+
		"sentinel down-after-milliseconds %[1]s %[3]d\n"+
		"sentinel failover-timeout %[1]s %[4]d\n", MasterSet, master, s.down.Milliseconds(), 4*s.down.Milliseconds())
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	sentinel := start(tb, func(port int) []string {
		return append([]string{conf, "--sentinel", "--port", strconv.Itoa(port)}, s.secure(port)...)
	})
	// Sentinels discover each other, and replicas' roles, by messages every 2 s and queries every 10 s, which is too slow for tests. Once a
	// master is down, they query its replicas every second, and promote none whose answer is older than five ping periods. A sentinel that
	// finds none retries only 8 s later. Redis 6.2 cannot be configured, and stays slow.
	_ = newAdmin(tb, sentinel).do("SENTINEL", "DEBUG", "PUBLISH-PERIOD", "200", "INFO-PERIOD", "500", "PING-PERIOD", "500")
	return sentinel
}

// Addrs returns the addresses of the sentinels.
func (s *Sentinel) Addrs() (all []string) {
	for _, n := range s.sentinels {
		all = append(all, hostPort(s.port(n.port)))
	}
	return all
}

// Client returns a client that follows the master; the test's clean-up closes it.
func (s *Sentinel) Client(tb testing.TB, mod ...func(*rueidis.ClientOption)) rueidis.Client {
	tb.Helper()
	return dial(tb, rueidis.ClientOption{
		InitAddress: s.Addrs(),
		Sentinel:    rueidis.SentinelOption{MasterSet: MasterSet},
	}, mod)
}

// Master asks the sentinels for the master. They learn of a failover one by one, so wait for a new master with Eventually.
func (s *Sentinel) Master(tb testing.TB) *Server {
	tb.Helper()
	for _, n := range s.sentinels {
		at, err := n.do("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MasterSet).AsStrSlice()
		if err != nil || len(at) != 2 {
			continue // this one may have been stopped by the test
		}
		for _, n := range s.nodes {
			if hostPort(s.port(n.port)) == net.JoinHostPort(at[0], at[1]) {
				return n.Server
			}
		}
	}
	tb.Fatal("redistest: no sentinel knows the master")
	return nil
}

// Nodes returns the master and the replicas, in their initial order.
func (s *Sentinel) Nodes() []*Server { return servers(s.nodes) }

// Sentinels returns the sentinels.
func (s *Sentinel) Sentinels() []*Server { return servers(s.sentinels) }
