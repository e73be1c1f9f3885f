//go:build !unix

package redistest

import "syscall"

// Without these signals Pause and Resume do nothing; the package still builds,
// for tests with RLOCK_TEST_ADDR.
const (
	sigPause  = syscall.Signal(-1)
	sigResume = syscall.Signal(-1)
)
