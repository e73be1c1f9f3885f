package redistest

import (
	"context"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
)

// Eventually polls cond until it holds, and fails the test with msg after the given time. It polls every millisecond at first, and on real
// servers less often the longer it takes, so that it sees a change at most 5 % late. In the virtual world, no time passes if it holds as soon
// as all have done what they can do at once.
func Eventually(tb testing.TB, within time.Duration, cond func() bool, msg string) {
	tb.Helper()
	if IsVirtual(tb) {
		synctest.Wait()
	}
	began := time.Now()
	for {
		asked := time.Now()
		if cond() {
			return
		}
		// Check once more after the deadline, because on a stalled machine the first check would be the only one.
		if asked.Sub(began) > within && Ran(tb, began, asked) > within {
			tb.Fatal(notWithin(within, msg))
		}
		pause := time.Millisecond
		if !IsVirtual(tb) { // parallel tests that only poll would starve each other
			pause = min(max(pause, 9*time.Since(asked), time.Since(began)/20), time.Second)
		}
		time.Sleep(pause)
	}
}

// Commands returns how often each command ran since the server started, as INFO commandstats counts: "evalsha", "client|list". Subtract two
// results to get the calls in between; each call adds one "info". Commands called by scripts count too. On a cluster the result is the sum
// over all nodes.
func Commands(tb testing.TB, c rueidis.Client) map[string]int64 {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	calls := make(map[string]int64)
	for addr, node := range c.Nodes() {
		info, err := node.Do(ctx, node.B().Info().Section("commandstats").Build()).ToString()
		if err != nil {
			tb.Fatalf("redistest: INFO commandstats of %s: %v", addr, err)
		}
		for line := range strings.Lines(info) {
			// cmdstat_client|list:calls=4,usec=31,...
			name, stats, ok := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
			if !ok {
				continue
			}
			n, _, _ := strings.Cut(stats, ",")
			count, err := strconv.ParseInt(n, 10, 64)
			if err != nil {
				tb.Fatalf("redistest: INFO commandstats of %s: %q", addr, line)
			}
			calls[name] += count
		}
	}
	return calls
}

// testLabel labels the goroutines started by a parallel test.
const testLabel = "redistest"

// Parallel is t.Parallel for the tests of a package that looks at goroutines: it separates the goroutines of different tests. A subtest
// that calls it counts as a separate test.
//
// A test that measures the memory or time of the whole process must run alone.
func Parallel(t *testing.T) {
	t.Helper()
	// A goroutine inherits its creator's labels. A goroutine started by a timer has none.
	pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels(testLabel, t.Name())))
	parallel.Store(t.Name(), true)
	t.Cleanup(func() { parallel.Delete(t.Name()) })
	t.Parallel()
}

// parallel has the names of the tests that called Parallel.
var parallel sync.Map

// inParallel reports whether a test is, or is part of, a test that called Parallel.
func inParallel(test string) bool {
	for i := range test + "/" {
		if _, is := parallel.Load(test[:i]); is && (i == len(test) || test[i] == '/') {
			return true
		}
	}
	return false
}

// Goroutines counts the goroutines whose stack contains one of substrs, such as "github.com/go-rlock/rlock/pubsub.". It skips goroutines
// that run tests, whose stacks also name the package under test, and those of this package. In a test that called Parallel, it also skips
// goroutines of other tests.
func Goroutines(substrs ...string) (n int) {
	looking.Lock()
	defer looking.Unlock()
	all, own := look(), ""
	for _, g := range all {
		if strings.Contains(g.stack, "internal/testing/redistest.look(") {
			own = g.labels
		}
	}
	for _, g := range all {
		foreign := own != "" && g.labels != "" && g.labels != own
		if !foreign && !g.ofTests() && containsAny(g.stack, substrs) {
			n += g.count
		}
	}
	return n
}

// looking is held while look runs, so the one goroutine inside is the caller's.
var looking sync.Mutex

// alike is a set of goroutines with the same stack and labels.
type alike struct {
	count  int
	labels string
	stack  string // a line "function(" for each call, the innermost first
	root   string // the outermost of them
}

// look returns all current goroutines from the goroutine profile.
func look() []alike {
	var text strings.Builder
	_ = pprof.Lookup("goroutine").WriteTo(&text, 1) // a Builder takes everything
	var all []alike
	for group := range strings.SplitSeq(text.String(), "\n\n") {
		var g alike
		for line := range strings.Lines(group) {
			if count, _, ok := strings.Cut(line, " @ "); ok {
				g.count, _ = strconv.Atoi(count)
			} else if labels, ok := strings.CutPrefix(line, "# labels: "); ok {
				g.labels = labels
			} else if cells := strings.Split(line, "\t"); len(cells) > 2 { // # address function+0x1f file:line
				function, _, _ := strings.Cut(cells[2], "+0x")
				g.root = function + "("
				g.stack += g.root + "\n"
			}
		}
		all = append(all, g)
	}
	return all
}

func (g alike) ofTests() bool {
	return g.root == "testing.tRunner(" || strings.Contains(g.stack, "testing.(*M).Run(") ||
		strings.HasPrefix(g.root, "github.com/go-rlock/rlock/internal/testing/redistest.")
}

// Started counts the goroutines started directly by the caller's test whose stack contains substr but none of without, all at one instant.
// Call it on the test's goroutine or on a goroutine started by it. It is far faster than Goroutines.
func Started(substr string, without ...string) int {
	all := stacks()
	test, creator := family(all[0]) // the caller's own stack is the first
	if !strings.Contains(all[0], "created by testing.") {
		test = creator
	}
	n := 0
	for _, stack := range all {
		if _, creator := family(stack); creator == test && strings.Contains(stack, substr) && !containsAny(stack, without) {
			n++
		}
	}
	return n
}

func containsAny(s string, substrs []string) bool {
	return slices.ContainsFunc(substrs, func(substr string) bool { return strings.Contains(s, substr) })
}

// family returns a stack's goroutine and its creator, such as "goroutine 18".
func family(stack string) (id, creator string) {
	id, _, _ = strings.Cut(stack, " [") // goroutine 18 [running]:
	_, creator, _ = strings.Cut(stack, " in goroutine ")
	creator, _, _ = strings.Cut(creator, "\n")
	return id, "goroutine " + creator
}

// stacks returns one text per goroutine.
func stacks() []string {
	for buf := make([]byte, 1<<20); ; buf = make([]byte, 2*len(buf)) {
		if n := runtime.Stack(buf, true); n < len(buf) {
			return strings.Split(string(buf[:n]), "\n\n")
		}
	}
}
