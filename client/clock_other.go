//go:build !linux

package client

func systemClock() clock { return goClock() }
