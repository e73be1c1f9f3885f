package rlocktest_test

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/rlocktest"
)

// mistakes with bubbles, each of which ends its process.
var mistakes = map[string]struct {
	make func(t *testing.T)
	says string
}{
	"New outside": {func(t *testing.T) {
		locks := rlocktest.New(t)
		synctest.Test(t, func(t *testing.T) {
			_ = locks.Mutex("a").Do(t.Context(), func(context.Context) error { return nil })
		})
	}, "panic: rlocktest: this Client was made outside of the synctest bubble that uses it, so its clock is another one: " +
		"call rlocktest.New inside of the function given to synctest.Test, with that function's t"},
	"New outside, and used there": {func(t *testing.T) {
		locks := rlocktest.New(t)
		_ = locks.Mutex("b").Do(t.Context(), func(context.Context) error { return nil })
		synctest.Test(t, func(t *testing.T) {
			_, _, _ = locks.Mutex("a").TryLock(t.Context(), time.Second)
		})
	}, "panic: rlocktest: this Client was made outside of the synctest bubble"},
	"the outer t": {func(t *testing.T) {
		synctest.Test(t, func(*testing.T) {
			locks := rlocktest.New(t)
			_ = locks.Mutex("a").Do(context.Background(), func(context.Context) error { return nil })
		})
	}, "rlocktest: New in a synctest bubble was given a t from outside of it, so the Client is not closed before the bubble ends: " +
		"pass the t that synctest.Test gives its function"},
}

// A Client on the wrong side of a bubble says what is wrong, and what to do. Otherwise the runtime ends the process in another library.
func TestMistakesWithBubbles(t *testing.T) {
	const variable = "RLOCKTEST_MISTAKE"
	if name := os.Getenv(variable); name != "" {
		mistakes[name].make(t)
		return
	}
	for name, mistake := range mistakes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestMistakesWithBubbles$", "-test.timeout=1m")
			c.Env = append(os.Environ(), variable+"="+name)
			out, err := c.CombinedOutput()
			require.Error(t, err)
			require.Contains(t, string(out), mistake.says)
			require.NotContains(t, string(out), "fatal error")
		})
	}
}
