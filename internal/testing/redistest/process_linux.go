package redistest

import "syscall"

// dieWithParent makes the kernel kill the child with this process, even after a panic or kill that skips the clean-up.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
