package redlock

import (
	"syscall"
	"time"
	"unsafe"
)

const (
	clockMonotonic = 1
	clockBoottime  = 7
)

// The time asleep is CLOCK_BOOTTIME − CLOCK_MONOTONIC: the first goes on while
// the machine is suspended, the second does not. The two cannot be read at the
// same moment, so the order of reading decides on which side the error falls;
// between a start and a look it can only make the suspension look shorter, by
// the moment between two system calls. Taking the difference of two real clocks
// also leaves the result at zero under a test's virtual time.
func asleepAtMost() time.Duration {
	mono := readClock(clockMonotonic)
	return readClock(clockBoottime) - mono
}

func asleepAtLeast() time.Duration {
	boot := readClock(clockBoottime)
	return boot - readClock(clockMonotonic)
}

// readClock is clock_gettime(2), which is not in package syscall. It cannot
// fail for these two clocks on a Linux that Go supports.
func readClock(id uintptr) time.Duration {
	var ts syscall.Timespec
	syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, id, uintptr(unsafe.Pointer(&ts)), 0)
	return time.Duration(ts.Nano())
}
