//go:build !linux

package testenv

func memoryDir() string { return "" }
