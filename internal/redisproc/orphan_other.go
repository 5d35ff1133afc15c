//go:build !linux

package redisproc

import "syscall"

func noOrphan() *syscall.SysProcAttr { return nil }
