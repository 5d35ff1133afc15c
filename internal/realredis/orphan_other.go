//go:build !linux

package realredis

import "syscall"

func noOrphan() *syscall.SysProcAttr { return nil }
