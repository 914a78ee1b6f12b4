package segments

import (
	"bufio"
	"errors"
	"math"
	"os"
	"slices"
)

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
