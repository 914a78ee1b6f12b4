package container

// Limits bound what a box uses of the host.
type Limits struct {
	CPUs   int64
	Memory int64 // bytes
	Pids   int64
	IO     IO
}

// IO bounds what a box reads from and writes to one disk, per second; 0 is no limit.
type IO struct {
	Major, Minor          int64 // of the disk
	ReadBytes, WriteBytes int64
	Reads, Writes         int64
}
