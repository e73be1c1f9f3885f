package redistest

import "syscall"

// dieWithParent makes the kernel kill the child with this process, even when a test binary panics or is killed and no
// clean-up runs.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
