//go:build unix

package redistest

import "syscall"

const (
	sigPause  = syscall.SIGSTOP
	sigResume = syscall.SIGCONT
)
