//go:build !unix

package redisproc

import "errors"

var errNoSignals = errors.New("this system has no SIGSTOP")

func (l *life) stop() error { return errNoSignals }
func (l *life) cont() error { return errNoSignals }
