package redistest

import (
	"context"
	"flag"
	"runtime"
	"runtime/pprof"
	"sync"
	"testing"
)

// BesideEachOther makes the tests of the two worlds run at the same time: those of the real world wait for most of theirs, in which the
// virtual ones use the CPU. A TestMain calls it before [Main]; the tests of its package call [Parallel] instead of t.Parallel.
//
// The flag -parallel then bounds the tests of the real world only. A virtual test that waits for its turn would need a place among them.
func BesideEachOther() {
	flag.Parse()
	n := flag.Lookup("test.parallel")
	places.free = make(chan struct{}, n.Value.(flag.Getter).Get().(int))
	if err := n.Value.Set("1000000"); err != nil {
		panic(err)
	}
}

// places are those that -parallel gives to tests of the real world; free is nil if package testing gives them.
var places struct {
	free chan struct{}

	mu    sync.Mutex // guards the following
	leave map[string]func()
}

// Parallel is t.Parallel for the tests of a package that looks at goroutines: it separates the goroutines of different tests. A subtest
// that calls it counts as a separate test.
//
// A test that measures the memory or time of the whole process must run alone.
func Parallel(t *testing.T) {
	t.Helper()
	beside(t)
	if places.free == nil {
		return
	}
	leavePlaces(t.Name()) // t.Parallel returned, so all that its parents still do is wait for it
	places.free <- struct{}{}
	places.mu.Lock()
	defer places.mu.Unlock()
	if places.leave == nil {
		places.leave = make(map[string]func())
	}
	places.leave[t.Name()] = sync.OnceFunc(func() { <-places.free })
	t.Cleanup(func() { leavePlaces(t.Name() + "/") })
}

// leavePlaces gives back the places of all parents of a test.
func leavePlaces(test string) {
	places.mu.Lock()
	defer places.mu.Unlock()
	for i := range test {
		if test[i] == '/' {
			if leave := places.leave[test[:i]]; leave != nil {
				leave()
			}
		}
	}
}

// bubbles bounds how many tests of the virtual world run at a time. All that they take is CPU, of which tests of the real world, with their
// time limits, need a share: half of it.
var bubbles = make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))

// enterBubble waits for the turn of a test of the virtual world, and returns what ends it.
func enterBubble(t *testing.T) (leave func()) {
	t.Helper()
	if inParallel() {
		beside(t)
	}
	bubbles <- struct{}{}
	return func() { <-bubbles }
}

// inParallel reports whether tests of the virtual world run beside others.
func inParallel() bool { return cap(bubbles) > 1 || places.free != nil }

// beside makes a test run beside others, unless it does already.
func beside(t *testing.T) {
	t.Helper()
	if _, does := inParallelNow.LoadOrStore(t, true); does {
		return
	}
	t.Cleanup(func() { inParallelNow.Delete(t) })
	// A goroutine inherits its creator's labels. A goroutine started by a timer has none.
	pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels(testLabel, t.Name())))
	t.Parallel()
}

// inParallelNow has the tests for which t.Parallel was called.
var inParallelNow sync.Map

// testLabel labels the goroutines started by a parallel test, see [Goroutines].
const testLabel = "redistest"
