package config

// Disk limits what a box can write to its root.
type Disk struct {
	Mode   string `yaml:"mode"`
	Small  Size   `yaml:"small"` // of boxes of these sizes
	Medium Size   `yaml:"medium"`
	Large  Size   `yaml:"large"`
	Files  int    `yaml:"files"`
}

// IO limits what a box reads from and writes to the disk of the state directory, per second; 0 is no limit.
type IO struct {
	ReadBytes  Size `yaml:"read_bytes_per_second"`
	WriteBytes Size `yaml:"write_bytes_per_second"`
	Reads      int  `yaml:"reads_per_second"`
	Writes     int  `yaml:"writes_per_second"`
}

func defaultDisk() Disk {
	return Disk{Mode: "auto", Small: 10 << 30, Medium: 20 << 30, Large: 40 << 30, Files: 1_000_000}
}

// LeastDisk is the least that a box can be limited to.
const LeastDisk = 64 << 20

func (d Disk) check(fail func(key, format string, args ...any)) {
	switch d.Mode {
	case "auto", "project", "loop", "off":
	default:
		fail("launcher.disk.mode", "%q is not a valid value; use auto, project, loop or off", d.Mode)
	}
	for key, size := range map[string]Size{"small": d.Small, "medium": d.Medium, "large": d.Large} {
		if size < LeastDisk || size > 1<<44 {
			fail("launcher.disk."+key, "%v is out of range; use %v to 16TiB", size, Size(LeastDisk))
		}
	}
	if d.Files < 1000 || d.Files > 1<<30 {
		fail("launcher.disk.files", "%d is out of range; use 1000 to %d", d.Files, 1<<30)
	}
}

func (io IO) check(fail func(key, format string, args ...any)) {
	if io.Reads < 0 || io.Writes < 0 {
		fail("launcher.io", "a limit cannot be negative; 0 is no limit")
	}
}
