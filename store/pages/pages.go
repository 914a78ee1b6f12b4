package pages

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"runtime/debug"

	bolt "go.etcd.io/bbolt"
)

// bbolt's page types and the layout of their elements.
const (
	pageBranch   = 0x01
	pageLeaf     = 0x02
	pageFreelist = 0x10

	elementSize  = 16 // in branch and leaf pages
	elementIsBkt = 0x01
	bucketHeader = 16 // root and sequence, before an inline page
	manyFree     = 0xFFFF
	noFreelist   = ^uint64(0)
)

// pageWalk reads a bbolt file from disk. bbolt itself trusts its memory map: a damaged page makes it panic, loop or
// miss existing keys.
type pageWalk struct {
	f    io.ReaderAt
	size uint64 // of a page
	n    uint64 // number of pages in use or free; later ones were never used
	seen map[uint64]bool
}

func newPageWalk(f io.ReaderAt, header []byte) *pageWalk {
	return &pageWalk{f: f, size: uint64(binary.LittleEndian.Uint32(header[8:])), n: binary.LittleEndian.Uint64(header[40:]),
		seen: map[uint64]bool{}}
}

// Reachable returns the pages in use of an intact file.
func Reachable(f *os.File) (map[uint64]bool, error) {
	header, err := newerHeader(f)
	if err != nil {
		return nil, err
	}
	w := newPageWalk(f, header)
	return w.seen, w.walk(binary.LittleEndian.Uint64(header[16:]), keyRange{})
}

// checkPages requires that every page reachable from the newer header can be read by bbolt, is reached once, has its
// keys in order, and is not on the free list.
func checkPages(f io.ReaderAt, fileSize int64, header []byte) error {
	w := newPageWalk(f, header)
	if w.size < 512 || w.n > uint64(fileSize)/w.size {
		return errors.New("it is truncated")
	}
	if err := w.walk(binary.LittleEndian.Uint64(header[16:]), keyRange{}); err != nil {
		return err
	}
	return w.freelist(binary.LittleEndian.Uint64(header[32:]))
}

// keyRange is the valid range of a page's keys: from first, and below end unless that is nil.
type keyRange struct{ first, end []byte }

// read returns a page with its overflow pages. Each page may only be read once.
func (w *pageWalk) read(id uint64) ([]byte, error) {
	if id < 2 || id >= w.n {
		return nil, fmt.Errorf("there is no page %d", id)
	}
	page := make([]byte, w.size)
	if _, err := w.f.ReadAt(page, int64(id*w.size)); err != nil {
		return nil, err
	}
	over := uint64(binary.LittleEndian.Uint32(page[12:]))
	if binary.LittleEndian.Uint64(page) != id || over >= w.n-id {
		return nil, fmt.Errorf("page %d is damaged", id)
	}
	for i := id; i <= id+over; i++ {
		if w.seen[i] {
			return nil, fmt.Errorf("page %d is in use twice", i)
		}
		w.seen[i] = true
	}
	if over == 0 {
		return page, nil
	}
	page = make([]byte, (over+1)*w.size)
	_, err := w.f.ReadAt(page, int64(id*w.size))
	return page, err
}

// walk checks a page and all pages below it.
func (w *pageWalk) walk(id uint64, in keyRange) error {
	page, err := w.read(id)
	if err != nil {
		return err
	}
	if binary.LittleEndian.Uint16(page[8:]) == pageBranch {
		return w.branch(id, page, in)
	}
	return w.leaf(id, page, in)
}

// pageKeys returns the keys of a page. place returns the position and size of an element's key.
func pageKeys(page []byte, place func(element []byte) (pos, size uint64)) ([][]byte, error) {
	count := uint64(binary.LittleEndian.Uint16(page[10:]))
	if pageHeader+count*elementSize > uint64(len(page)) {
		return nil, errors.New("more elements than fit")
	}
	var keys [][]byte
	for i := range count {
		at := pageHeader + i*elementSize
		pos, size := place(page[at:])
		if at+pos+size > uint64(len(page)) {
			return nil, errors.New("a key outside of the page")
		}
		keys = append(keys, page[at+pos:at+pos+size])
	}
	return keys, nil
}

// checkOrder requires ordered keys within the range.
func (in keyRange) checkOrder(keys [][]byte) error {
	for i, k := range keys {
		if bytes.Compare(k, in.first) < 0 || in.end != nil && bytes.Compare(k, in.end) >= 0 || i > 0 && bytes.Compare(keys[i-1], k) >= 0 {
			return errors.New("keys out of order")
		}
	}
	return nil
}

func (w *pageWalk) branch(id uint64, page []byte, in keyRange) error {
	keys, err := pageKeys(page, func(e []byte) (pos, size uint64) {
		return uint64(binary.LittleEndian.Uint32(e)), uint64(binary.LittleEndian.Uint32(e[4:]))
	})
	if err == nil {
		err = in.checkOrder(keys)
	}
	if err == nil && len(keys) == 0 {
		err = errors.New("no elements")
	}
	if err != nil {
		return fmt.Errorf("page %d has %w", id, err)
	}
	for i, first := range keys {
		below := keyRange{first: first, end: in.end}
		if i+1 < len(keys) {
			below.end = keys[i+1]
		}
		if err := w.walk(binary.LittleEndian.Uint64(page[pageHeader+i*elementSize+8:]), below); err != nil {
			return err
		}
	}
	return nil
}

// leaf checks a leaf page, which may be inlined in a value of page id.
func (w *pageWalk) leaf(id uint64, page []byte, in keyRange) error {
	if binary.LittleEndian.Uint16(page[8:]) != pageLeaf {
		return fmt.Errorf("page %d has the wrong type", id)
	}
	keys, err := pageKeys(page, func(e []byte) (pos, size uint64) {
		return uint64(binary.LittleEndian.Uint32(e[4:])), uint64(binary.LittleEndian.Uint32(e[8:]))
	})
	if err == nil {
		err = in.checkOrder(keys)
	}
	if err != nil {
		return fmt.Errorf("page %d has %w", id, err)
	}
	for i, key := range keys {
		at := uint64(pageHeader + i*elementSize)
		flags := binary.LittleEndian.Uint32(page[at:])
		start := at + uint64(binary.LittleEndian.Uint32(page[at+4:])) + uint64(len(key))
		end := start + uint64(binary.LittleEndian.Uint32(page[at+12:]))
		if end > uint64(len(page)) || flags > elementIsBkt {
			return fmt.Errorf("page %d has a damaged value", id)
		}
		if flags == elementIsBkt {
			if err := w.bucket(id, page[start:end]); err != nil {
				return err
			}
		}
	}
	return nil
}

// bucket checks the contents of a bucket: separate pages, or one inlined in the value.
func (w *pageWalk) bucket(id uint64, value []byte) error {
	if len(value) < bucketHeader {
		return fmt.Errorf("page %d has a damaged bucket", id)
	}
	if root := binary.LittleEndian.Uint64(value); root != 0 {
		return w.walk(root, keyRange{})
	}
	if len(value) < bucketHeader+pageHeader {
		return fmt.Errorf("page %d has a damaged bucket", id)
	}
	return w.leaf(id, value[bucketHeader:], keyRange{})
}

// freelist requires that free pages are not in use: they are the next to be written.
func (w *pageWalk) freelist(id uint64) error {
	if id == noFreelist {
		return nil
	}
	page, err := w.read(id)
	if err != nil {
		return err
	}
	count, ids := uint64(binary.LittleEndian.Uint16(page[10:])), page[pageHeader:]
	if count == manyFree {
		count, ids = binary.LittleEndian.Uint64(ids), ids[8:]
	}
	if binary.LittleEndian.Uint16(page[8:]) != pageFreelist || count > uint64(len(ids))/8 {
		return fmt.Errorf("page %d is not a free list", id)
	}
	for i := range count {
		free := binary.LittleEndian.Uint64(ids[8*i:])
		if free < 2 || free >= w.n || w.seen[free] {
			return fmt.Errorf("page %d is in use and free", free)
		}
		w.seen[free] = true
	}
	return nil
}

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

// Open opens a bbolt file after reading all of it and finding it intact.
func Open(path string, o bolt.Options) (b *bolt.DB, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if v := recover(); v != nil {
			// The half-opened file stays locked until the process exits, which it does because the start fails.
			b, err = nil, ErrDamaged
		}
	}()
	readOnly := o.ReadOnly
	o.ReadOnly = true // bolt then reads only the headers, and no other process can write
	still, err := bolt.Open(path, 0o600, &o)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(checkFile(path), still.Close()); err != nil {
		return nil, err
	}
	o.ReadOnly = readOnly
	return bolt.Open(path, 0o600, &o)
}

// ErrDamaged reports that a store is damaged, with the remedy.
var ErrDamaged = errors.New("it is damaged: restore a backup of the whole state directory, or, to start over without any " +
	"box, reboot and delete what is in it")

// checkFile reads and checks a whole bbolt file.
func checkFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	header, err := newerHeader(f)
	if err != nil {
		return err
	}
	if err := checkPages(f, info.Size(), header); err != nil {
		return fmt.Errorf("%w (%w)", ErrDamaged, err)
	}
	return nil
}

// newerHeader returns the current header, and requires both to be intact. With one of them damaged, bbolt opens the
// file in the state before its last change, which may have closed a box. A disk writes a header atomically, so a power
// loss does not damage it.
func newerHeader(f *os.File) ([]byte, error) {
	first, errFirst := readHeader(f, 0)
	size := int64(os.Getpagesize())
	if errFirst == nil {
		size = int64(binary.LittleEndian.Uint32(first[8:]))
	}
	second, err := readHeader(f, size)
	if err := errors.Join(errFirst, err); err != nil {
		return nil, fmt.Errorf("one of its two headers is damaged, and the last change may be lost: restore a backup of the "+
			"whole state directory, or, if that change may be lost, run bbolt surgery revert-meta-page on the file (%w)", err)
	}
	if binary.LittleEndian.Uint64(first[48:]) > binary.LittleEndian.Uint64(second[48:]) {
		return first, nil
	}
	return second, nil
}
