package rlocktest

import (
	"fmt"
	"sync"
	"testing"
)

// recorder is a test that records its errors, and ends on demand.
type recorder struct {
	testing.TB

	mu    sync.Mutex // guards the following
	said  []string
	ended []func()
}

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.said = append(r.said, fmt.Sprintf(format, args...))
}

func (r *recorder) Cleanup(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = append(r.ended, f)
}

// end ends the test, and returns its errors so far.
func (r *recorder) end() []string {
	for len(r.ended) > 0 {
		last := len(r.ended) - 1
		f := r.ended[last]
		r.ended = r.ended[:last]
		f()
	}
	return r.said
}

// fatal is a recorder of a test that calls Fatal.
type fatal struct{ recorder }

func (f *fatal) Fatalf(format string, args ...any) {
	f.Errorf(format, args...)
	panic(f)
}
