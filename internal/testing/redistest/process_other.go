//go:build !linux

package redistest

import "syscall"

// dieWithParent has no counterpart here: a test binary killed before its clean-up leaves its servers running.
func dieWithParent() *syscall.SysProcAttr { return nil }
