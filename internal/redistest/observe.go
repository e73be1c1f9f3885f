package redistest

import (
	"context"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
)

// Eventually waits until cond holds, asking every millisecond, and fails the
// test with msg if it does not within the given time.
func Eventually(tb testing.TB, within time.Duration, cond func() bool, msg string) {
	tb.Helper()
	// cond is asked once more after the time is up: on a machine that stood
	// still, the first look would otherwise be the last.
	for deadline := time.Now().Add(within); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			if cond() {
				return
			}
			tb.Fatalf("not within %v: %s", within, msg)
		}
	}
}

// Commands returns how often each command ran since the server started, as
// INFO commandstats counts: "evalsha", "client|list". The difference of two
// calls is what happened in between; each call itself adds one "info". What a
// script calls is counted too. On a cluster it is the sum of all nodes.
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

// Goroutines counts the goroutines whose stack contains substr, such as
// "github.com/go-rlock/rlock/pubsub.". Those that run tests and those of this
// package are left out: a test's own stack names the package under test too.
func Goroutines(substr string) int {
	n := 0
	for _, stack := range stacks() {
		if strings.Contains(stack, substr) && !ofTests(stack) {
			n++
		}
	}
	return n
}

// Started counts the goroutines that the caller's goroutine has started and whose
// stack contains substr but not without, all seen in the same moment. Those of
// tests that run in parallel are left out.
func Started(substr, without string) int {
	var own [32]byte
	id, _, _ := strings.Cut(string(own[:runtime.Stack(own[:], false)]), " [") // goroutine 18 [running]:
	n := 0
	for _, stack := range stacks() {
		if strings.Contains(stack, " in "+id+"\n") && strings.Contains(stack, substr) && !strings.Contains(stack, without) {
			n++
		}
	}
	return n
}

// stacks returns one text per goroutine.
func stacks() []string {
	for buf := make([]byte, 1<<20); ; buf = make([]byte, 2*len(buf)) {
		if n := runtime.Stack(buf, true); n < len(buf) {
			return strings.Split(string(buf[:n]), "\n\n")
		}
	}
}

func ofTests(stack string) bool {
	return strings.Contains(stack, "created by testing.") ||
		strings.Contains(stack, "testing.(*M).Run(") ||
		strings.Contains(stack, "created by github.com/go-rlock/rlock/internal/redistest.")
}
