package snapshot

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"golang.org/x/sys/unix"

	"boxgate/launcher/namespace"
)

// An archive is a layer as one stream: a gob stream of packed entries, in the order in which a walk visits them. The contents of a file
// follow its entry, as runs of bytes: each is preceded by its offset and its length as uvarints, and a run of length 0 ends the file. Blocks
// of zeros are left out, whether or not they are holes, so that two archives of the same directory are equal.

// packed is an entry in an archive.
type packed struct {
	Item item
	Size int64  // of a regular file
	Link uint32 // not 0: the number of a file with several names; its contents follow the first
	Last bool   // the archive ends here; the other fields are empty
}

const (
	// blockSize is the size of the blocks that are left out if they are zero.
	blockSize = 64 << 10
	// maxArchiveLinks is how many files with several names an archive can have: half the names that a capture takes.
	maxArchiveLinks = 1 << 20
)

// Archive writes a layer's tree to w. The same directory always gives the same bytes, as layers do not change.
func Archive(ctx context.Context, layer string, w io.Writer) error {
	top, err := os.Open(Tree(layer))
	if err != nil {
		return err
	}
	defer top.Close()
	buf := bufio.NewWriterSize(w, 256<<10)
	a := archiver{ctx: ctx, w: buf, enc: gob.NewEncoder(buf), links: map[uint64]uint32{}}
	err = walk(ctx, top, visitor{maxEntries: math.MaxInt64, entry: a.add, leave: func() error { return a.enc.Encode(packed{Item: item{Leave: true}}) }})
	if err == nil {
		err = a.enc.Encode(packed{Last: true})
	}
	return errors.Join(err, buf.Flush())
}

// archiver writes an archive.
type archiver struct {
	ctx   context.Context
	w     *bufio.Writer
	enc   *gob.Encoder
	links map[uint64]uint32 // inode → number
	block [blockSize]byte
}

// add writes one entry.
func (a *archiver) add(dir *os.File, e entry) error {
	it, err := describe(dir, e, namespace.IDs{})
	if err != nil {
		return err
	}
	p := packed{Item: it}
	if !e.regular() {
		return a.enc.Encode(p)
	}
	p.Size = e.stat.Size
	number, again := a.links[e.stat.Ino]
	switch {
	case e.stat.Nlink > 1 && again:
		p.Link = number
		return a.enc.Encode(p)
	case e.stat.Nlink > 1 && len(a.links) == maxArchiveLinks: // written for each name, it could be very large
		return fmt.Errorf("the snapshot has more than %d files with several names, too many for another host", maxArchiveLinks)
	case e.stat.Nlink > 1:
		number = uint32(len(a.links) + 1)
		a.links[e.stat.Ino], p.Link = number, number
	}
	if err := a.enc.Encode(p); err != nil {
		return err
	}
	f, err := openAt(dir, e.name, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	return a.contents(f, p.Size)
}

// contents writes the blocks of a file that are not zero.
func (a *archiver) contents(f *os.File, size int64) error {
	for at := int64(0); at < size; {
		if a.ctx.Err() != nil {
			return context.Cause(a.ctx)
		}
		begin, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break // a hole up to the end
		}
		if err != nil {
			return err
		}
		if at = max(at, begin/blockSize*blockSize); at >= size {
			break
		}
		block := a.block[:min(size-at, blockSize)]
		if _, err := f.ReadAt(block, at); err != nil {
			return fmt.Errorf("%w: %w", errChanged, err)
		}
		if !isZero(block) {
			if err := a.run(at, block); err != nil {
				return err
			}
		}
		at += int64(len(block))
	}
	return a.run(size, nil)
}

func (a *archiver) run(at int64, block []byte) error {
	head := binary.AppendUvarint(binary.AppendUvarint(nil, uint64(at)), uint64(len(block)))
	if _, err := a.w.Write(head); err != nil {
		return err
	}
	_, err := a.w.Write(block)
	return err
}

func isZero(block []byte) bool {
	for len(block) >= 8 {
		if binary.NativeEndian.Uint64(block) != 0 {
			return false
		}
		block = block[8:]
	}
	for _, b := range block {
		if b != 0 {
			return false
		}
	}
	return true
}
