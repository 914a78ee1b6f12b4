package worker

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"syscall"
)

// The operations.
const (
	OpStat    = "stat"
	OpList    = "list"
	OpRead    = "read"  // answers with an Info, then content
	OpWrite   = "write" // content follows the request
	OpMakeDir = "mkdir"
	OpRename  = "rename"
	OpRemove  = "remove"
	OpPack    = "pack"   // answers, then a tar archive as content, then an Answer with the number of skipped files
	OpUnpack  = "unpack" // a tar archive follows the request as content
)

// Request is one operation. Paths are bytes, because file names need not be UTF-8, and absolute.
type Request struct {
	Op        string
	Path      []byte
	To        []byte `json:",omitempty"` // of OpRename
	Follow    bool   `json:",omitempty"` // of OpStat: follow a symbolic link
	Parents   bool   `json:",omitempty"` // of OpMakeDir
	Recursive bool   `json:",omitempty"` // of OpRemove
	Mode      uint32 `json:",omitempty"` // of OpWrite: permissions of a new file; 0: 0644
	Most      int    `json:",omitempty"` // of OpList: maximum number of entries
	Offset    int64  `json:",omitempty"` // of OpRead
	Length    int64  `json:",omitempty"` // of OpRead: maximum number of bytes
}

// Answer is the result of a request.
type Answer struct {
	Failure   *Failure `json:",omitempty"`
	Info      *Info    `json:",omitempty"`
	Entries   []Info   `json:",omitempty"`
	Truncated bool     `json:",omitempty"` // the directory has more entries
	Skipped   int      `json:",omitempty"` // files that OpPack could not read
}

// Info describes a file. In a list, a link has the size and the directory bit of its target.
type Info struct {
	Name  []byte
	Type  string // file, directory, symlink or other
	IsDir bool
	Size  int64
	Mode  uint32 // permissions
	Time  int64  // of the last modification, in ns since 1970
	Inode uint64
}

// Failure is an error that is sent to the other process.
type Failure struct {
	Errno   syscall.Errno // 0: unknown
	Message string
}

// Error returns the message.
func (f *Failure) Error() string { return f.Message }

// Unwrap returns the error number, so that errors.Is finds it.
func (f *Failure) Unwrap() error {
	if f.Errno == 0 {
		return nil
	}
	return f.Errno
}

// Failed converts an error to a Failure. It drops the path, which the caller knows.
func Failed(err error) *Failure {
	var f *Failure
	if err == nil || errors.As(err, &f) {
		return f
	}
	var no syscall.Errno
	if errors.As(err, &no) {
		return &Failure{Errno: no, Message: no.Error()}
	}
	for known, no := range map[error]syscall.Errno{fs.ErrNotExist: syscall.ENOENT, fs.ErrExist: syscall.EEXIST, fs.ErrPermission: syscall.EACCES} {
		if errors.Is(err, known) {
			return &Failure{Errno: no, Message: no.Error()}
		}
	}
	return &Failure{Message: err.Error()}
}

// A message is a length of four bytes and JSON. Content is a sequence of chunks, each preceded by its length, and ends with
// a chunk of length 0; without it the content is incomplete.
const (
	// MaxChunk is the maximum size of a chunk of content.
	MaxChunk = 128 << 10
	// maxMessage bounds a request and an answer. The longest list of files fits.
	maxMessage = 64 << 20
)

// Send writes a message.
func Send(w io.Writer, message any) error {
	data, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if len(data) > maxMessage {
		return fmt.Errorf("a message of %d bytes is too long", len(data))
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(data))), data...))
	return err
}

// Receive reads a message.
func Receive(r io.Reader, message any) error {
	n, err := readLength(r, maxMessage)
	if err != nil {
		return err
	}
	data, err := io.ReadAll(io.LimitReader(r, int64(n)))
	if err != nil {
		return err
	}
	if len(data) < n {
		return io.ErrUnexpectedEOF
	}
	return json.Unmarshal(data, message)
}

func readLength(r io.Reader, most int) (int, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > uint32(most) {
		return 0, fmt.Errorf("a length of %d is too long", n)
	}
	return int(n), nil
}

// ContentWriter sends content. Close sends the end marker, without which the content is incomplete.
type ContentWriter struct {
	W   io.Writer
	buf []byte
}

// Write sends chunks.
func (c *ContentWriter) Write(b []byte) (int, error) {
	done := 0
	for len(b) > 0 {
		n := min(len(b), MaxChunk)
		c.buf = append(binary.BigEndian.AppendUint32(c.buf[:0], uint32(n)), b[:n]...)
		if _, err := c.W.Write(c.buf); err != nil {
			return done, err
		}
		done += n
		b = b[n:]
	}
	return done, nil
}

// Close sends the end marker.
func (c *ContentWriter) Close() error {
	_, err := c.W.Write(make([]byte, 4))
	return err
}

// ContentReader receives content. It returns io.EOF only after the end marker.
type ContentReader struct {
	R    io.Reader
	left int
	done bool
}

// Read reads content.
func (c *ContentReader) Read(b []byte) (int, error) {
	if c.done {
		return 0, io.EOF
	}
	if c.left == 0 {
		n, err := readLength(c.R, MaxChunk)
		if err != nil {
			return 0, cut(err)
		}
		if c.left = n; n == 0 {
			c.done = true
			return 0, io.EOF
		}
	}
	n, err := c.R.Read(b[:min(len(b), c.left)])
	c.left -= n
	return n, cut(err)
}

func cut(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
