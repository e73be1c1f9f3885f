package redistest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
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
