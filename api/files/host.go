package files

import (
	"context"
	"io"

	"boxgate/policy"
)

// Host is what the files need of a gateway.
type Host interface {
	// OpenFiles returns the files of a box that is up and stays so until Close is called. They end with ctx.
	OpenFiles(ctx context.Context, id policy.BoxID) (Files, error)
}

// Files are the files of one box as its user may use them. Paths are absolute. One call at a time; a call comes once the
// content of the one before has been read to its end. After an error that is not of a file, call Close.
type Files interface {
	Stat(path string, follow bool) (Info, error)
	// List returns at most that many entries, and whether there are more.
	List(path string, most int) ([]Info, bool, error)
	// Read returns up to length bytes from an offset on.
	Read(path string, offset, length int64) (Info, io.Reader, error)
	// Write replaces a file, whole or not at all. mode is that of a new file; 0: 0644.
	Write(path string, mode uint32, content io.Reader) error
	MakeDir(path string, parents bool) error
	Rename(from, to string) error
	Remove(path string, recursive bool) error
	// Pack returns a directory as a tar archive. Skipped, once that was read, is how many files could not be.
	Pack(path string) (archive io.Reader, skipped func() (int, error), err error)
	// Unpack makes the files of a tar archive below a directory.
	Unpack(path string, archive io.Reader) error
	Close()
}

// Info describes a file. Those of a list show links with the size and the directory bit of what they lead to.
type Info struct {
	Name  []byte
	Type  string // file, directory, symlink or other
	IsDir bool
	Size  int64
	Mode  uint32 // permissions
	Time  int64  // of the last modification, in ns since 1970
	Inode uint64
}
