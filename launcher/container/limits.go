package container

// Limits bound what a box uses of the host.
type Limits struct {
	CPUs   int64
	Memory int64 // bytes
	Pids   int64
}
