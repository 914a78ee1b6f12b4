package enter

import (
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"
)

// plan is a list of system calls for [machine], with the data that they refer to. The data is at fixed addresses behind the
// calls.
type plan struct {
	ops   []op
	data  []byte
	names []string // of each call, in messages
}

// op is one system call.
type op struct {
	number  uintptr
	args    [6]uintptr
	ignored []unix.Errno // at most four, below 256
	skip    int          // calls to skip if it returns more than 0
}

const (
	dataAt  = planAt + 64<<10
	maxOps  = (dataAt - opsAt) / opSize
	maxData = planSize - (dataAt - planAt)
)

// errTooLong is returned for a command that does not fit into a plan. The kernel refuses most of these too.
var errTooLong = errors.New("the command is too long")

// call adds a call and returns it, under a name for messages. It is valid until the next call.
func (p *plan) call(what string, number uintptr, args ...uintptr) *op {
	o := op{number: number}
	copy(o.args[:], args)
	p.ops, p.names = append(p.ops, o), append(p.names, what)
	return &p.ops[len(p.ops)-1]
}

// ignore lets the plan go on after these errors of a call.
func (o *op) ignore(errs ...unix.Errno) { o.ignored = errs }

// put adds data and returns its address. It is aligned to 8 bytes.
func (p *plan) put(b []byte) uintptr {
	for len(p.data)%8 != 0 {
		p.data = append(p.data, 0)
	}
	at := dataAt + uintptr(len(p.data))
	p.data = append(p.data, b...)
	return at
}

// text adds a string for C, which must not contain NUL.
func (p *plan) text(s string) uintptr { return p.put(append([]byte(s), 0)) }

// words adds words of 64 bits.
func (p *plan) words(words ...uintptr) uintptr {
	var b []byte
	for _, w := range words {
		b = binary.LittleEndian.AppendUint64(b, uint64(w))
	}
	return p.put(b)
}

// list adds a list of strings that ends with a null pointer.
func (p *plan) list(items []string) uintptr {
	at := make([]uintptr, 0, len(items)+1)
	for _, s := range items {
		at = append(at, p.text(s))
	}
	return p.words(append(at, 0)...)
}

// encode returns the calls as they are mapped at planAt; the data is mapped at dataAt.
func (p *plan) encode() ([]byte, error) {
	if len(p.ops) > maxOps || len(p.data) > maxData {
		return nil, errTooLong
	}
	out := make([]byte, opSize, opSize*(1+len(p.ops)))
	for _, o := range p.ops {
		out = binary.LittleEndian.AppendUint64(out, uint64(o.number))
		for _, a := range o.args {
			out = binary.LittleEndian.AppendUint64(out, uint64(a))
		}
		var ignored uint32
		for i, e := range o.ignored {
			ignored |= uint32(e) << (8 * i)
		}
		out = binary.LittleEndian.AppendUint32(out, ignored)
		out = binary.LittleEndian.AppendUint32(out, uint32(o.skip*opSize))
	}
	return out, nil
}

// nameAt returns the name of the call at an offset of the list; "" for an invalid offset.
func (p *plan) nameAt(offset uint32) string {
	i := (int(offset) - opSize) / opSize
	if i < 0 || i >= len(p.names) {
		return ""
	}
	return p.names[i]
}
