package redisproc

import "syscall"

// noOrphan makes the kernel kill a server whose parent ended without killing it,
// as a program does that panics and a test binary that times out. The kernel takes
// the end of the thread that started the server for the end of the parent: see
// begin.
func noOrphan() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
