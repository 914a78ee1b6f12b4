// Package segments keeps lines in a directory of append-only files of bounded size, so that the oldest can be removed
// without rewriting the rest. Opening the files removes an incomplete line that a crash has left.
package segments

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const suffix = ".jsonl"

// Segment is one file.
type Segment struct {
	Number uint64 // of its first line, as numbered by its writer
	Begun  time.Time
	Size   int64 // bytes; grows while it is the last segment
	path   string
}

// Files are the files of a directory. Safe for concurrent use; only one process may write them.
type Files struct {
	dir string

	mu          sync.Mutex
	list        []Segment // oldest first; the last one may be open for writing
	last        *os.File  // nil: the next line begins a file
	midLine     bool      // the last write ended within a line
	closed      bool      // writes fail; guarded by mu
	reserveSize int64     // bytes to preallocate beyond the end of the last file
	reservedEnd int64     // end of the space preallocated for the last file
}

// Open opens the files of a directory, which it creates if needed. cut reports that an incomplete last line was
// removed.
func Open(dir string) (f *Files, cut bool, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, false, err
	}
	list, err := List(dir)
	if err != nil {
		return nil, false, err
	}
	f = &Files{dir: dir, list: list}
	f.removeTemporary()
	if len(list) == 0 {
		return f, false, nil
	}
	s := &f.list[len(list)-1]
	if f.last, err = os.OpenFile(s.path, os.O_RDWR|os.O_APPEND, 0o600); err != nil {
		return nil, false, &FileError{*s, err}
	}
	whole, err := wholeLines(f.last, s.Size)
	if err == nil && whole < s.Size {
		cut, err = true, f.last.Truncate(whole)
		s.Size = whole
	}
	if err != nil {
		return nil, false, errors.Join(&FileError{*s, err}, f.last.Close())
	}
	return f, cut, nil
}

// removeTemporary removes unfinished copies that a crash has left.
func (f *Files) removeTemporary() {
	left, _ := filepath.Glob(filepath.Join(f.dir, "*"+temporary))
	for _, path := range left {
		_ = os.Remove(path) // otherwise the next Rewrite replaces it
	}
}

// FileError is an error about one file.
type FileError struct {
	Segment Segment
	Err     error
}

func (e *FileError) Error() string { return e.Segment.Name() + ": " + e.Err.Error() }

// Unwrap returns the underlying error.
func (e *FileError) Unwrap() error { return e.Err }

// List returns the segments of a directory, oldest first. A directory that does not exist has no segments.
func List(dir string) ([]Segment, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var list []Segment
	for _, e := range entries {
		first, second, ok := strings.Cut(strings.TrimSuffix(e.Name(), suffix), "-")
		number, err := strconv.ParseUint(first, 10, 64)
		millis, err2 := strconv.ParseInt(second, 10, 64)
		if !ok || err != nil || err2 != nil || !strings.HasSuffix(e.Name(), suffix) {
			continue // not a segment
		}
		info, err := e.Info()
		if err != nil {
			continue // removed concurrently
		}
		list = append(list, Segment{Number: number, Begun: time.UnixMilli(millis), Size: info.Size(), path: filepath.Join(dir, e.Name())})
	}
	slices.SortFunc(list, func(a, b Segment) int { return strings.Compare(a.path, b.path) })
	return list, nil
}

// wholeLines returns the length of a file's whole lines in bytes.
func wholeLines(f io.ReaderAt, size int64) (int64, error) {
	buf := make([]byte, 64<<10)
	for end := size; end > 0; {
		part := buf[:min(int64(len(buf)), end)]
		if _, err := f.ReadAt(part, end-int64(len(part))); err != nil {
			return 0, err
		}
		if i := bytes.LastIndexByte(part, '\n'); i >= 0 {
			return end - int64(len(part)) + int64(i) + 1, nil
		}
		end -= int64(len(part))
	}
	return 0, nil
}

// Write appends whole lines; number is that of the first. After a short write, b begins with the rest of the interrupted
// line. It returns the number of bytes written.
func (f *Files) Write(b []byte, number uint64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return 0, os.ErrClosed // another process may be writing them
	}
	if f.last == nil {
		if err := f.createFile(number, time.Now()); err != nil {
			return 0, err
		}
	}
	return f.appendLocked(b)
}

// WriteCopy is Write for lines copied from a segment of other files. A file that they begin gets the number and the time
// of that segment.
func (f *Files) WriteCopy(s Segment, b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return 0, os.ErrClosed
	}
	if f.last == nil {
		if err := f.createFile(s.Number, s.Begun); err != nil {
			return 0, err
		}
	}
	return f.appendLocked(b)
}

func (f *Files) appendLocked(b []byte) (int, error) {
	f.reserveLocked()
	n, err := f.last.Write(b)
	f.list[len(f.list)-1].Size += int64(n)
	if n > 0 {
		f.midLine = b[n-1] != '\n'
	}
	return n, err
}

// Preallocate preallocates this many bytes beyond the end of the current file, as far as the disk has space, so that lines
// can be written even if something else fills the disk.
func (f *Files) Preallocate(bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reserveSize = bytes
	f.reserveLocked()
}

// reserveLocked renews the preallocated space when half of it is used. On a full disk the rest has to do.
func (f *Files) reserveLocked() {
	if f.reserveSize == 0 || f.last == nil {
		return
	}
	size := f.list[len(f.list)-1].Size
	if f.reservedEnd-size > f.reserveSize/2 {
		return
	}
	if unix.Fallocate(int(f.last.Fd()), unix.FALLOC_FL_KEEP_SIZE, size, f.reserveSize) == nil {
		f.reservedEnd = size + f.reserveSize
	}
}

func (f *Files) createFile(number uint64, begun time.Time) error {
	path := filepath.Join(f.dir, fmt.Sprintf("%020d-%d%s", number, begun.UnixMilli(), suffix))
	file, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	f.last = file
	f.list = append(f.list, Segment{Number: number, Begun: begun, path: path})
	return nil
}

// Undo removes the n bytes written last, which no caller has relied on yet.
func (f *Files) Undo(n int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n == 0 || f.last == nil {
		return nil
	}
	s := &f.list[len(f.list)-1]
	if err := f.last.Truncate(s.Size - int64(n)); err != nil {
		return err
	}
	s.Size -= int64(n)
	f.midLine, f.reservedEnd = false, 0
	return nil
}

// Rotate makes the next line begin a file, if the last file has at least size bytes or is at least age old. It is a no-op
// if the last file ends within a line.
func (f *Files) Rotate(size int64, age time.Duration) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.last == nil || f.midLine {
		return nil
	}
	s := f.list[len(f.list)-1]
	if s.Size == 0 || s.Size < size && time.Since(s.Begun) < age {
		return nil
	}
	return f.closeLocked()
}

// Sync makes all written lines durable.
func (f *Files) Sync() error {
	f.mu.Lock()
	last := f.last
	f.mu.Unlock()
	if last == nil {
		return nil
	}
	if err := last.Sync(); err != nil && !errors.Is(err, os.ErrClosed) { // closing a file syncs it first
		return err
	}
	return nil
}

// Segments returns the segments, oldest first.
func (f *Files) Segments() []Segment {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.list)
}

// Size returns the total number of bytes.
func (f *Files) Size() (sum int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.list {
		sum += f.list[i].Size
	}
	return sum
}

// RemoveOldest removes the oldest segment, but never the one being written.
func (f *Files) RemoveOldest() error {
	return f.dropOldest(func(s Segment) error { return os.Remove(s.path) })
}

func (f *Files) dropOldest(drop func(Segment) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.list) == 0 || len(f.list) == 1 && f.last != nil {
		return nil
	}
	if err := drop(f.list[0]); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f.list = f.list[1:]
	return nil
}

// Name returns the base name of the segment's file.
func (s Segment) Name() string { return filepath.Base(s.path) }

// DamagedName returns the base name of the segment's file after it is set aside.
func (s Segment) DamagedName() string { return s.Name() + ".damaged" }

// SetAsideOldest renames the oldest file, which removes it from the segments, unless it is the one being written.
func (f *Files) SetAsideOldest() error {
	return f.dropOldest(func(s Segment) error { return os.Rename(s.path, filepath.Join(filepath.Dir(s.path), s.DamagedName())) })
}

// Close closes the file being written.
func (f *Files) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.closeLocked()
}

// Release closes the files for good: another process may write them from now on, and a write is an error.
func (f *Files) Release() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	return f.closeLocked()
}

func (f *Files) closeLocked() error {
	if f.last == nil {
		return nil
	}
	if f.reservedEnd > 0 {
		_ = f.last.Truncate(f.list[len(f.list)-1].Size) // frees the preallocated space
	}
	err := errors.Join(f.last.Sync(), f.last.Close())
	f.last, f.reservedEnd = nil, 0
	return err
}

// maxLine is the maximum length of a line in bytes.
const maxLine = 4 << 20

// ErrLine is returned for a line longer than any that Files writes.
var ErrLine = errors.New("a line is too long")

// Read calls do with each whole line of a segment from offset on, without its line break, and returns the offset after
// the last one. A segment that has been removed has no lines. do must not retain the line.
func (s Segment) Read(offset int64, do func(line []byte) error) (int64, error) {
	offset, err := s.ReadExisting(offset, do)
	if errors.Is(err, os.ErrNotExist) {
		return offset, nil
	}
	return offset, err
}

// ReadExisting is Read, but returns [os.ErrNotExist] for a segment that has been removed.
func (s Segment) ReadExisting(offset int64, do func(line []byte) error) (int64, error) {
	f, err := os.Open(s.path)
	if err != nil {
		return offset, err
	}
	defer f.Close()
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		return offset, err
	}
	r := bufio.NewReaderSize(f, 64<<10)
	var long []byte
	for {
		part, err := r.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			if long = append(long, part...); len(long) > maxLine {
				return offset, ErrLine
			}
			continue
		}
		if errors.Is(err, io.EOF) {
			return offset, nil // the rest is not a whole line
		}
		if err != nil {
			return offset, err
		}
		line := part
		if len(long) > 0 {
			line = append(long, part...)
			long = long[:0]
		}
		offset += int64(len(line))
		if err := do(line[:len(line)-1]); err != nil {
			return offset, err
		}
	}
}

// temporary is the suffix of a file that replaces a segment once it is complete.
const temporary = ".new"

// Rewrite replaces each line of a segment by the lines that edit appends to a buffer. A concurrent reader sees either
// the old or the new segment. before is called when the new file is complete and the old one still in place. On error
// the old segment stays. A segment left without lines is removed; one whose size does not change stays, and before is
// not called.
func (f *Files) Rewrite(s Segment, edit func(to, line []byte) []byte, before func() error) error {
	size, err := s.copyTo(s.path+temporary, edit)
	defer os.Remove(s.path + temporary)
	if err != nil || size == s.Size {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.IndexFunc(f.list, func(o Segment) bool { return o.path == s.path })
	if i < 0 || f.closed {
		return os.ErrClosed
	}
	if i == len(f.list)-1 {
		if err := f.closeLocked(); err != nil {
			return err
		}
	}
	if err := before(); err != nil {
		return err
	}
	if size == 0 {
		f.list = slices.Delete(f.list, i, i+1)
		return os.Remove(s.path)
	}
	f.list[i].Size = size
	return os.Rename(s.path+temporary, s.path)
}

// copyTo writes the edited lines of a segment to a file, and returns its size.
func (s Segment) copyTo(path string, edit func(to, line []byte) []byte) (size int64, err error) {
	to, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	w, buf := bufio.NewWriterSize(to, 64<<10), []byte(nil)
	_, err = s.ReadExisting(0, func(line []byte) error {
		buf = edit(buf[:0], line)
		size += int64(len(buf))
		_, err := w.Write(buf)
		return err
	})
	return size, errors.Join(err, w.Flush(), to.Sync())
}

// Cut truncates the last segment to size bytes.
func (f *Files) Cut(size int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.closeLocked(); err != nil || len(f.list) == 0 {
		return err
	}
	i := len(f.list) - 1
	if size == 0 {
		path := f.list[i].path
		f.list = f.list[:i]
		return os.Remove(path)
	}
	if err := os.Truncate(f.list[i].path, size); err != nil {
		return err
	}
	f.list[i].Size = size
	return nil
}

// Share returns the maximum number of bytes per owner for which the total, with larger owners cut down to it, fits into
// room.
func Share(sizes []int64, room int64) int64 {
	slices.Sort(sizes)
	for i, size := range sizes {
		each := room / int64(len(sizes)-i)
		if size > each {
			return each
		}
		room -= size
	}
	return math.MaxInt64
}
