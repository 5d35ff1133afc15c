//go:build unix

package realredis

import "syscall"

// stop sends SIGSTOP and waits until it has worked: the signal is only queued by
// the sending, and a process on another processor runs on for a moment.
func (p *process) stop() error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for {
		_, err := syscall.Wait4(p.Pid, nil, syscall.WUNTRACED, nil)
		if err != syscall.EINTR {
			return err
		}
	}
}

func (p *process) cont() error { return p.Signal(syscall.SIGCONT) }
