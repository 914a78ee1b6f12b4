package launcher

// limits bound what a box takes of the host.
type limits struct {
	cpus   int64
	memory int64 // bytes
	pids   int64
}
