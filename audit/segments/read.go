package segments

import (
	"bufio"
	"errors"
	"io"
	"os"
)

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
