//go:build !linux

package stack

import "errors"

var errNoDisk = errors.New("only Linux can mount a disk of limited size")

func mountDisk(string, int64) (func() error, error) { return nil, errNoDisk }

func fillDisk(string) error { return errNoDisk }
