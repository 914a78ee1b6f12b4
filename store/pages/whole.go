package pages

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime/debug"

	bolt "go.etcd.io/bbolt"
)

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
