//go:build unix && !linux

package subprocess

import "syscall"

func setParentDeathSignal(*syscall.SysProcAttr, syscall.Signal) {}
