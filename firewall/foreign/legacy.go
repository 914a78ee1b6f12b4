package foreign

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"boxgate/firewall/network"
)

// This file reads the filter tables of iptables-legacy, the iptables that is not based on nftables and that nftables does
// not show. The kernel returns them as one block of memory (linux/netfilter_ipv4/ip_tables.h, …_ipv6/ip6_tables.h).

// legacyFamily describes the differences between the two families.
type legacyFamily struct {
	tool    string
	tables  string // below /proc/thread-self/net
	domain  int
	level   int // of the socket options
	entry   int // size of an entry without matches and target
	inIface int // offset in an entry of the name of the input interface, whose mask follows
	offsets int // offset in an entry of the offsets of the target and of the next entry
}

var legacyFamilies = []legacyFamily{
	{"iptables", "ip_tables_names", unix.AF_INET, unix.SOL_IP, 112, 16, 88},
	{"ip6tables", "ip6_tables_names", unix.AF_INET6, unix.SOL_IPV6, 168, 64, 140},
}

const (
	legacyGetInfo    = 64 // IPT_SO_GET_INFO
	legacyGetEntries = 65 // IPT_SO_GET_ENTRIES
	legacyInfoSize   = 84 // struct ipt_getinfo
	legacyHead       = 40 // of struct ipt_get_entries
	maxLegacyTable   = 64 << 20

	hookInput, hookForward = 1, 2
	// Verdicts of the standard target: netfilter's verdict, negated, less one.
	legacyDrop, legacyAccept = -1, -2
)

// legacyTable is a table as read from the kernel.
type legacyTable struct {
	family    *legacyFamily
	underflow [5]uint32 // offset of the policy of each hook's chain
	entries   []byte
}

// legacyDrops returns the chains of iptables-legacy that drop packets of boxes, in the network namespace of the calling
// thread: those with the policy drop, if no rule of the table accepts boxes' interfaces.
func legacyDrops() ([]drop, error) {
	var found []drop
	for i := range legacyFamilies {
		f := &legacyFamilies[i]
		names, err := os.ReadFile("/proc/thread-self/net/" + f.tables)
		if errors.Is(err, os.ErrNotExist) || err == nil && !bytes.Contains(append([]byte("\n"), names...), []byte("\nfilter\n")) {
			continue // reading it would create the table
		}
		if err != nil {
			return found, err
		}
		t, err := f.read("filter")
		if err != nil {
			return found, fmt.Errorf("%s-legacy: %w", f.tool, err)
		}
		found = append(found, t.dropsBoxes()...)
	}
	return found, nil
}

// read reads a table from the kernel. If the table changes between the two calls, the kernel returns EAGAIN, and read tries
// again.
func (f *legacyFamily) read(name string) (*legacyTable, error) {
	fd, err := unix.Socket(f.domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	for range 10 {
		info := make([]byte, legacyInfoSize)
		copy(info, name)
		if err := getsockopt(fd, f.level, legacyGetInfo, info); err != nil {
			return nil, err
		}
		size := binary.NativeEndian.Uint32(info[80:])
		if size > maxLegacyTable {
			return nil, fmt.Errorf("the table has %d bytes", size)
		}
		t := &legacyTable{family: f}
		for i := range t.underflow {
			t.underflow[i] = binary.NativeEndian.Uint32(info[56+4*i:])
		}
		all := make([]byte, legacyHead+int(size))
		copy(all, name)
		binary.NativeEndian.PutUint32(all[32:], size)
		err := getsockopt(fd, f.level, legacyGetEntries, all)
		if errors.Is(err, unix.EAGAIN) {
			continue
		}
		t.entries = all[legacyHead:]
		return t, err
	}
	return nil, unix.EAGAIN
}

// getsockopt fills value, which begins with the request.
func getsockopt(fd, level, option int, value []byte) error {
	size := uint32(len(value))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&value[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	if int(size) != len(value) {
		return unix.EAGAIN
	}
	return nil
}

// dropsBoxes returns the chains with the policy drop, if no rule of the table accepts boxes' interfaces.
func (t *legacyTable) dropsBoxes() []drop {
	for at := 0; ; {
		e, ok := t.at(at)
		if !ok {
			break
		}
		if e.forBoxes && e.verdict == legacyAccept {
			return nil
		}
		at = e.next
	}
	var found []drop
	for i, d := range []drop{{chain: "INPUT", kinds: []kind{toGateway}}, {chain: "FORWARD", kinds: []kind{forwarded}}} {
		if e, ok := t.at(int(t.underflow[hookInput+i])); ok && e.verdict == legacyDrop {
			d.tool = t.family.tool + "-legacy"
			d.program = programOfChain(d.chain == "FORWARD", func(chain string) bool {
				return bytes.Contains(t.entries, append([]byte(chain), 0)) // names of chains are in the table
			})
			found = append(found, d)
		}
	}
	return found
}

// legacyEntry has the relevant parts of a rule.
type legacyEntry struct {
	forBoxes bool
	verdict  int32 // 0: no immediate verdict
	next     int
}

// at reads the entry at an offset; ok is false if it does not exist or cannot be parsed.
func (t *legacyTable) at(offset int) (e legacyEntry, ok bool) {
	f := t.family
	if offset < 0 || offset+f.entry > len(t.entries) {
		return e, false
	}
	b := t.entries[offset:]
	target := int(binary.NativeEndian.Uint16(b[f.offsets:]))
	next := int(binary.NativeEndian.Uint16(b[f.offsets+2:]))
	if target < f.entry || next < target+40 || next > len(b) {
		return e, false
	}
	iface, mask := b[f.inIface:f.inIface+16], b[f.inIface+32:f.inIface+48]
	e.forBoxes = strings.HasPrefix(unix.ByteSliceToString(iface), network.LinkPrefix) && mask[len(network.LinkPrefix)] == 0 && mask[0] != 0
	if standard := b[target+2]; standard == 0 { // the standard target has an empty name
		e.verdict = int32(binary.NativeEndian.Uint32(b[target+32:]))
	}
	e.next = offset + next
	return e, true
}
