package main

import "runtime"

// heapFloor is memory that counts for the garbage collector and is never touched, so that it
// takes no room in RAM.
const heapFloor = 24 << 20

// withHeapFloor runs f with a floor under the size at which the next collection begins. What
// the service keeps alive is a few MiB, and each call makes garbage: collections that begin at
// twice that size come dozens of times a second and took a fifth of the service's processor
// time. A heap that is large for its own reasons is collected as always, and GOGC and
// GOMEMLIMIT mean what they do elsewhere.
func withHeapFloor(f func() error) error {
	floor := make([]byte, heapFloor)
	err := f()
	runtime.KeepAlive(floor)
	return err
}
