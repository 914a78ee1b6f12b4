package upstream

import (
	"boxgate/internal/buffers"
)

const (
	smallPiece = 2 << 10
	largePiece = 16 << 10
)

var (
	smallPieces = buffers.NewPool(smallPiece)
	largePieces = buffers.NewPool(largePiece)
)

// content is the unread part of a response. It uses at most twice its size in memory, plus one piece. The zero value is
// empty.
type content struct {
	pieces []piece
	one    [1]piece
	size   int
}

// piece contains the bytes from read to end of a buffer.
type piece struct {
	buf       *[]byte
	read, end int
}

// add appends a copy of p.
func (b *content) add(p []byte) {
	b.size += len(p)
	for len(p) > 0 {
		if len(b.pieces) == 0 || b.pieces[len(b.pieces)-1].room() == 0 {
			pool := smallPieces
			if len(p) > smallPiece || b.size > smallPiece {
				pool = largePieces
			}
			if b.pieces == nil {
				b.pieces = b.one[:0]
			}
			b.pieces = append(b.pieces, piece{buf: pool.Get()})
		}
		last := &b.pieces[len(b.pieces)-1]
		n := copy((*last.buf)[last.end:], p)
		last.end += n
		p = p[n:]
	}
}

func (p *piece) room() int { return len(*p.buf) - p.end }

func (p *piece) free() {
	if len(*p.buf) == smallPiece {
		smallPieces.Put(p.buf)
		return
	}
	largePieces.Put(p.buf)
}

// take moves content to p.
func (b *content) take(p []byte) (n int) {
	for len(p) > n && len(b.pieces) > 0 {
		first := &b.pieces[0]
		m := copy(p[n:], (*first.buf)[first.read:first.end])
		n += m
		if first.read += m; first.read == first.end {
			first.free()
			b.pieces = b.pieces[1:]
		}
	}
	if b.size -= n; b.size == 0 {
		b.pieces = nil
	}
	return n
}

// skip drops n bytes of the first piece.
func (b *content) skip(n int) {
	first := &b.pieces[0]
	if first.read += n; first.read == first.end {
		first.free()
		b.pieces = b.pieces[1:]
	}
	if b.size -= n; b.size == 0 {
		b.pieces = nil
	}
}

// drop drops the content and returns its size.
func (b *content) drop() int {
	for i := range b.pieces {
		b.pieces[i].free()
	}
	n := b.size
	*b = content{}
	return n
}
