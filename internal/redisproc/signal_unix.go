//go:build unix

package redisproc

import "syscall"

// stop sends SIGSTOP and waits until it has worked: the signal is only queued by
// the sending, and a process on another processor runs on for a moment.
func (l *life) stop() error {
	if err := l.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for {
		var status syscall.WaitStatus
		_, err := syscall.Wait4(l.Pid, &status, syscall.WUNTRACED, nil)
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.ECHILD, err == nil && !status.Stopped():
			return errEnded // before the signal came
		}
		return err
	}
}

func (l *life) cont() error { return l.Signal(syscall.SIGCONT) }
