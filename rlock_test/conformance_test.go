package rlock_test

import (
	"slices"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/conformance"
	"github.com/go-rlock/rlock/internal/testing/enginetest"
	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// TestConformance tests G1 to G9, as far as a single lock can show them, for each kind of lock on each deployment.
func TestConformance(t *testing.T) {
	cluster := redistest.SharedCluster(t)
	redistest.Parallel(t)
	for name, d := range map[string]deployment{
		"standalone": standalone(redistest.Shared(t)),
		"RESP2":      standalone(redistest.Shared(t), protocol(true)),
		"cluster":    {cluster.Addrs(), cluster.Client},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Parallel(t)
			conform(t, d, conformance.NoKind)
		})
	}
}

// conform tests each kind of lock on a deployment. What is about time is tested with all kinds in memory, by TestConformanceInMemory of
// rlocktest, and under RLOCK_TEST_WORLD=real; TestSentinelAndCluster has renewals by real servers, and the fault tests have losses.
func conform(t *testing.T, d deployment, timed conformance.Kinds) {
	shared := [2]rueidis.Client{d.dial(t), d.dial(t)} // for all tests without proxies
	if redistest.RealWorld() {
		timed = conformance.AllKinds
	}
	conformance.Run(t, conformance.Deployment{
		Watchdog: 10 * time.Second,
		Timed:    timed,
		Soon:     rlock.DefaultWatchdogTimeout, // on a busy machine
		// As in newClient.
		UnlockTimeout: testTimeout, Made: func(c *rlock.Client) { enginetest.Patient(c) },
		Run: func(t *testing.T, cell func(*testing.T)) {
			redistest.Parallel(t)
			cell(t)
		},
		Connect: func(t *testing.T, cuts bool) (sides [2]rueidis.Client, cutOff func(bool)) {
			if !cuts {
				return shared, nil
			}
			var proxies []*redistest.Proxy
			for _, addr := range d.addrs {
				proxies = append(proxies, redistest.StartProxy(t, addr))
			}
			return [2]rueidis.Client{d.dial(t, redistest.Via(proxies...)), shared[1]}, func(off bool) {
				for _, p := range proxies {
					p.BlackHole(off)
				}
			}
		},
	})
}

// deployment is a single server or a cluster.
type deployment struct {
	addrs []string
	dial  func(t testing.TB, mod ...func(*rueidis.ClientOption)) rueidis.Client
}

func standalone(addr string, always ...func(*rueidis.ClientOption)) deployment {
	return deployment{[]string{addr}, func(t testing.TB, mod ...func(*rueidis.ClientOption)) rueidis.Client {
		return redistest.Dial(t, addr, slices.Concat(always, mod)...)
	}}
}
