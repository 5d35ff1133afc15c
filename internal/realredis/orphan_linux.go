package realredis

import "syscall"

// noOrphan makes the kernel kill a server whose test binary ended without its
// clean-up, as it does after a panic or a time-out. The kernel looks at the thread
// that started the server; Go ends a thread only with a goroutine locked to it.
func noOrphan() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
