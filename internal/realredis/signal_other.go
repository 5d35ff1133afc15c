//go:build !unix

package realredis

import "errors"

var errNoSignals = errors.New("this system has no SIGSTOP")

func (p *process) stop() error { return errNoSignals }
func (p *process) cont() error { return errNoSignals }
