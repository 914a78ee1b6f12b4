package files

import (
	"context"
	"io"

	"boxgate/policy"
)

// Host opens the files of boxes.
type Host interface {
	// OpenFiles returns the files of a box, after starting it if necessary. The box keeps running until Close is called.
	// ctx bounds all calls.
	OpenFiles(ctx context.Context, id policy.BoxID) (Files, error)
}

// Files are the files of one box, with the permissions of its user. Paths are absolute. Calls must not overlap: read the
// content returned by a call to its end before the next call. After an error that does not concern a file, call Close.
type Files interface {
	Stat(path string, follow bool) (Info, error)
	// List returns at most that many entries, and whether there are more.
	List(path string, most int) ([]Info, bool, error)
	// Read returns up to length bytes, starting at offset.
	Read(path string, offset, length int64) (Info, io.Reader, error)
	// Write replaces a file atomically. mode is for a new file; 0: 0644.
	Write(path string, mode uint32, content io.Reader) error
	MakeDir(path string, parents bool) error
	Rename(from, to string) error
	Remove(path string, recursive bool) error
	// Pack returns a directory as a tar archive. After the archive was read, skipped returns the number of unreadable
	// files.
	Pack(path string) (archive io.Reader, skipped func() (int, error), err error)
	// Unpack extracts a tar archive into a directory.
	Unpack(path string, archive io.Reader) error
	Close()
}

// Info describes a file. In a list, a link has the Size and IsDir of its target.
type Info struct {
	Name  []byte
	Type  string // file, directory, symlink or other
	IsDir bool
	Size  int64
	Mode  uint32 // permissions
	Time  int64  // last modification, in ns since 1970
	Inode uint64
}
