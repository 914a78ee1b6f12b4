package pages

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
)

// Layout of the two headers of a bbolt file: in page 0 and page 1, written alternately, each after the page header.
const (
	pageHeader  = 16
	headerSize  = 64 // the last 8 bytes are the checksum of the preceding ones
	headerMagic = 0xED0CDAED
)

var errHeader = errors.New("no valid header")

// readHeader reads the header of the page at an offset.
func readHeader(f io.ReaderAt, at int64) ([]byte, error) {
	header := make([]byte, headerSize)
	if _, err := f.ReadAt(header, at+pageHeader); err != nil {
		return nil, err
	}
	sum := fnv.New64a()
	sum.Write(header[:headerSize-8])
	if binary.LittleEndian.Uint32(header) != headerMagic || sum.Sum64() != binary.LittleEndian.Uint64(header[headerSize-8:]) {
		return nil, fmt.Errorf("at %d: %w", at, errHeader)
	}
	return header, nil
}
