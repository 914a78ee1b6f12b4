package config

import (
	"fmt"
	"maps"

	"boxgate/launcher/image/agents"
)

// runtimeImages are the images of the SDK's runtimes, which launcher.images can override. They are the official images
// of the languages.
var runtimeImages = map[string]string{
	"node":          "docker.io/library/node:lts",
	"python":        "docker.io/library/python:3",
	"golang":        "docker.io/library/golang:1",
	"ruby":          "docker.io/library/ruby:3",
	"rust":          "docker.io/library/rust:1",
	"node-alpine":   "docker.io/library/node:lts-alpine",
	"python-alpine": "docker.io/library/python:3-alpine",
	"golang-alpine": "docker.io/library/golang:1-alpine",
	"ruby-alpine":   "docker.io/library/ruby:3-alpine",
	"rust-alpine":   "docker.io/library/rust:1-alpine",
	"debian-agents": "debian-agents",
}

// debianRuntimes are the runtimes that the debian image contains.
var debianRuntimes = []string{"node", "python"}

// BuiltHere reports whether an image is built on this host from Debian packages.
func BuiltHere(source string) bool {
	return source == "debian" || source == "debian-agents" || source == "debian-min"
}

// AllImages returns the images that a box's runtime can name.
func (l Launcher) AllImages() map[string]string {
	all := maps.Clone(runtimeImages)
	if l.Images["default"] == "debian" {
		for _, runtime := range debianRuntimes {
			all[runtime] = "debian"
		}
	}
	maps.Copy(all, l.Images)
	return all
}

// Disk limits how much a box can write to its root file system.
type Disk struct {
	Mode   string `yaml:"mode"`
	Small  Size   `yaml:"small"` // limits of boxes of these sizes
	Medium Size   `yaml:"medium"`
	Large  Size   `yaml:"large"`
	Files  int    `yaml:"files"`
}

// IO limits reads and writes of a box on the disk of the state directory, per second; 0: no limit.
type IO struct {
	ReadBytes  Size `yaml:"read_bytes_per_second"`
	WriteBytes Size `yaml:"write_bytes_per_second"`
	Reads      int  `yaml:"reads_per_second"`
	Writes     int  `yaml:"writes_per_second"`
}

func defaultDisk() Disk {
	return Disk{Mode: "auto", Small: 10 << 30, Medium: 20 << 30, Large: 40 << 30, Files: 1_000_000}
}

// MinDisk is the smallest limit of a box's disk, in bytes.
const MinDisk = 64 << 20

// MinReserve is the smallest reserve on the disk of the state directory, in bytes: the store grows by as much at a
// time.
const MinReserve = 16 << 20

func (l Launcher) check(fail func(key, format string, args ...any)) {
	if l.Images["default"] == "" {
		fail("launcher.images", `has no entry "default"`)
	}
	if err := agents.Check(l.Agents); err != nil {
		fail("launcher.agents", "%v", err)
	}
	l.Disk.check(fail)
	l.IO.check(fail)
}

func (d Disk) check(fail func(key, format string, args ...any)) {
	switch d.Mode {
	case "auto", "project", "loop", "off":
	default:
		fail("launcher.disk.mode", "%q is not a valid value; use auto, project, loop or off", d.Mode)
	}
	least, why := d.minimum()
	for key, size := range map[string]Size{"small": d.Small, "medium": d.Medium, "large": d.Large} {
		if size < least || size > 1<<44 {
			fail("launcher.disk."+key, "%v is out of range; use %v to 16TiB%s", size, least, why)
		}
	}
	if d.Files < 1000 || d.Files > 1<<30 {
		fail("launcher.disk.files", "%d is out of range; use 1000 to %d", d.Files, 1<<30)
	}
}

// minimum returns the smallest limit of a box's disk, and the reason if it exceeds MinDisk. In mode loop a box has its
// own file system, which reserves space for inodes: mkfs.ext4 needs up to 400 bytes for each, and more on very large
// ones.
func (d Disk) minimum() (Size, string) {
	if d.Mode != "loop" {
		return MinDisk, ""
	}
	each := 400
	if d.Files > 100_000_000 {
		each = 512
	}
	const mebibyte = 1 << 20
	least := MinDisk + (d.Files*each+mebibyte-1)/mebibyte*mebibyte
	return Size(least), fmt.Sprintf(": in mode loop, launcher.disk.files (%d) need space", d.Files)
}

func (io IO) check(fail func(key, format string, args ...any)) {
	if io.Reads < 0 || io.Writes < 0 {
		fail("launcher.io", "a limit cannot be negative; 0 is no limit")
	}
}
