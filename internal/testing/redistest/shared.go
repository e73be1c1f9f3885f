package redistest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// shared is the server shared by the tests of one binary.
var shared struct {
	mu     sync.Mutex // guards the fields below
	inMain bool       // Main is running, so the server will be ended
	once   bool       // the start was tried
	server *Server
	err    error

	stopExamples func()

	cluster  *Cluster
	sentinel *Sentinel
	cleanUps []func() // of both
}

// Main runs the tests of a package and ends the server that Shared started.
// It never returns:
//
//	func TestMain(m *testing.M) { redistest.Main(m) }
func Main(m *testing.M) {
	shared.mu.Lock()
	shared.inMain = true
	shared.mu.Unlock()

	code := m.Run()
	stopShared()
	os.Exit(code)
}

// MainWithExamples is Main for a package whose examples name their Redis as users do: REDIS_URL is the URL of a server for them.
func MainWithExamples(m *testing.M) {
	addr, stop := ForExample()
	_ = os.Setenv("REDIS_URL", "redis://"+addr) // fails for odd names only
	shared.mu.Lock()
	shared.stopExamples = stop
	shared.mu.Unlock()
	Main(m)
}

func stopShared() {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.stopExamples != nil {
		shared.stopExamples()
	}
	if shared.server != nil {
		shared.server.retire()
		_ = os.RemoveAll(shared.server.dir)
	}
	for _, end := range slices.Backward(shared.cleanUps) {
		end()
	}
}

// Shared returns the address of a plain server that all tests of this binary may use at the same time: RLOCK_TEST_ADDR, or a server started
// on first use. A test of the virtual world has its own.
//
// Tests use keys from Name to avoid collisions, and leave the server unchanged: no FLUSHALL, CONFIG SET, SCRIPT FLUSH, or counts of all
// commands. A test that needs those uses Start.
func Shared(tb testing.TB) string {
	tb.Helper()
	if w := worldOf(tb); w != nil {
		w.once.Do(func() { w.shared = Start(tb) })
		return w.shared.Addr()
	}
	start, _ := alone.Load(tb)
	if start, ok := start.(func() *Server); ok {
		return start().Addr()
	}
	if addr := os.Getenv("RLOCK_TEST_ADDR"); addr != "" {
		return addr
	}
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if !shared.once {
		shared.once = true
		shared.server, shared.err = startShared()
	}
	if shared.err != nil {
		tb.Fatal(shared.err)
	}
	return shared.server.Addr()
}

// startShared requires shared.mu.
func startShared() (*Server, error) {
	if !shared.inMain {
		return nil, errors.New("redistest: Shared needs func TestMain(m *testing.M) { redistest.Main(m) }")
	}
	dir, err := os.MkdirTemp("", "redistest")
	if err != nil {
		return nil, fmt.Errorf("redistest: %w", err)
	}
	return newServer(dir, plainArgs)
}

// SharedCluster returns a cluster of three masters without replicas that all tests of this binary may use at the same time, like [Shared]. They
// also leave its nodes running and its slots in place.
//
// A cluster needs two seconds to start, however idle the machine is: call it before Parallel, so that only the first test waits.
func SharedCluster(tb testing.TB) *Cluster {
	tb.Helper()
	return lasts(tb, &shared.cluster, func(tb testing.TB) *Cluster { return StartCluster(tb, 3, 0) })
}

// SharedSentinel is a master with replicas and sentinels for all tests of this binary, like SharedCluster.
func SharedSentinel(tb testing.TB) *Sentinel {
	tb.Helper()
	return lasts(tb, &shared.sentinel, func(tb testing.TB) *Sentinel { return StartSentinel(tb) })
}

// lasts returns a deployment, which it starts if there is none yet.
func lasts[T any](tb testing.TB, one **T, start func(testing.TB) *T) *T {
	tb.Helper()
	if IsVirtual(tb) {
		tb.Fatal("redistest: there are only single servers in the virtual world")
	}
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if !shared.inMain {
		tb.Fatal("redistest: a shared deployment needs func TestMain(m *testing.M) { redistest.Main(m) }")
	}
	if *one == nil {
		*one = start(lasting{tb})
	}
	return *one
}

// lasting is a test whose clean-ups run when the binary ends. Its user holds shared.mu.
type lasting struct{ testing.TB }

func (lasting) Cleanup(f func()) { shared.cleanUps = append(shared.cleanUps, f) }

func (l lasting) TempDir() string {
	l.Helper()
	dir, err := os.MkdirTemp("", "redistest")
	if err != nil {
		l.Fatalf("redistest: %v", err)
	}
	l.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// run distinguishes test binaries on a shared server; names distinguishes keys within a binary.
var (
	run   = fmt.Sprintf("%08x", rand.Uint32())
	names atomic.Int64
)

// Name returns a key name that is unique, in this process or another, and shows its test. It contains no braces, so in braces it is a
// single hash tag.
func Name(tb testing.TB) string {
	tb.Helper()
	test := strings.NewReplacer("{", "(", "}", ")").Replace(tb.Name())
	return fmt.Sprintf("%s.%s.%d", test, run, names.Add(1))
}
