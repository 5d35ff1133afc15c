//go:build unix

package faultinject

import (
	"os"
	"syscall"
)

func pauseProcess(p *os.Process, stop bool) error {
	if stop {
		return p.Signal(syscall.SIGSTOP)
	}
	return p.Signal(syscall.SIGCONT)
}
