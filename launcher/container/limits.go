package container

// Limits bound the resources of a box.
type Limits struct {
	CPUs   int64
	Memory int64 // bytes
	Pids   int64
	IO     IO
}

// IO bounds reads and writes of a box on one disk, per second; 0 is no limit.
type IO struct {
	Major, Minor          int64 // of the disk
	ReadBytes, WriteBytes int64
	Reads, Writes         int64
}
