package foreign

import (
	"encoding/binary"
	"strings"
	"testing"
	"unsafe"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"boxgate/firewall/namespace"
	"boxgate/internal/nightly"
)

// legacyRule returns one entry of a filter table as iptables-legacy would write it.
func legacyRule(f *legacyFamily, iface string, verdict int32) []byte {
	b := make([]byte, f.entry+40)
	copy(b[f.inIface:], iface)
	for i := range iface {
		b[f.inIface+32+i] = 0xff
	}
	binary.NativeEndian.PutUint16(b[f.offsets:], uint16(f.entry))
	binary.NativeEndian.PutUint16(b[f.offsets+2:], uint16(len(b)))
	binary.NativeEndian.PutUint16(b[f.entry:], 40)
	binary.NativeEndian.PutUint32(b[f.entry+32:], uint32(verdict))
	return b
}

// setLegacy replaces the filter table of the calling thread's namespace: a rule for the interfaces in INPUT and in FORWARD,
// and policies.
func setLegacy(f *legacyFamily, iface string, input, forward int32) error {
	var entries []byte
	var hooks, underflow [5]uint32
	count := 0
	add := func(b []byte) {
		entries = append(entries, b...)
		count++
	}
	for _, c := range []struct {
		hook   int
		policy int32
	}{{hookInput, input}, {hookForward, forward}, {3, legacyAccept}} {
		hooks[c.hook] = uint32(len(entries))
		if iface != "" {
			add(legacyRule(f, iface, legacyAccept))
		}
		underflow[c.hook] = uint32(len(entries))
		add(legacyRule(f, "", c.policy))
	}
	last := make([]byte, f.entry+64) // the error target that ends a table
	binary.NativeEndian.PutUint16(last[f.offsets:], uint16(f.entry))
	binary.NativeEndian.PutUint16(last[f.offsets+2:], uint16(len(last)))
	binary.NativeEndian.PutUint16(last[f.entry:], 64)
	copy(last[f.entry+2:], "ERROR")
	copy(last[f.entry+32:], "ERROR")
	add(last)

	fd, err := unix.Socket(f.domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	info := make([]byte, legacyInfoSize) // reading the table creates it
	copy(info, "filter")
	if err := getsockopt(fd, f.level, legacyGetInfo, info); err != nil {
		return err
	}
	old := binary.NativeEndian.Uint32(info[76:])
	counters := make([]byte, 16*old)
	replace := make([]byte, 96) // struct ipt_replace
	copy(replace, "filter")
	put := func(at int, v uint32) { binary.NativeEndian.PutUint32(replace[at:], v) }
	put(32, 1<<hookInput|1<<hookForward|1<<3)
	put(36, uint32(count))
	put(40, uint32(len(entries)))
	for i := range hooks {
		put(44+4*i, hooks[i])
		put(64+4*i, underflow[i])
	}
	put(84, old)
	binary.NativeEndian.PutUint64(replace[88:], uint64(uintptr(unsafe.Pointer(&counters[0]))))
	replace = append(replace, entries...)
	const setReplace = 64 // IPT_SO_SET_REPLACE
	_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(f.level), setReplace,
		uintptr(unsafe.Pointer(&replace[0])), uintptr(len(replace)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// Tables of iptables-legacy, which nftables does not show, are found if they drop packets of boxes.
func TestLegacyTablesThatDrop(t *testing.T) {
	nightly.Root(t)
	for i := range legacyFamilies {
		f := &legacyFamilies[i]
		t.Run(f.tool, func(t *testing.T) {
			gateway := testNamespace(t)
			check := func() error { return namespace.Do(gateway, Check) }
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			set := func(iface string, input, forward int32) {
				t.Helper()
				must(namespace.Do(gateway, func() error { return setLegacy(f, iface, input, forward) }))
			}
			must(check())
			set("", legacyAccept, legacyAccept)
			must(check())
			set("", legacyAccept, legacyDrop)
			if err := check(); err == nil || !strings.Contains(err.Error(), "the chain FORWARD of "+f.tool+"-legacy drops what the kernel forwards") ||
				strings.Contains(err.Error(), "INPUT") {
				t.Errorf("forward: %v", err)
			}
			set("eth0", legacyDrop, legacyDrop)
			if err := check(); err == nil || !strings.Contains(err.Error(), "INPUT") || !strings.Contains(err.Error(), f.tool+"-legacy -I FORWARD -i bg+ -j ACCEPT") {
				t.Errorf("both, and a rule for another interface: %v", err)
			}
			set("bg", legacyDrop, legacyDrop) // iptables' "-i bg+"
			must(check())
		})
	}
}

func FuzzLegacyTable(f *testing.F) {
	f.Add(append(legacyRule(&legacyFamilies[0], "bg", legacyDrop), legacyRule(&legacyFamilies[0], "", legacyDrop)...), false, uint32(152))
	f.Add(append(legacyRule(&legacyFamilies[1], "", legacyDrop), legacyRule(&legacyFamilies[1], "bg", legacyAccept)...), true, uint32(0))
	f.Fuzz(func(t *testing.T, entries []byte, six bool, underflow uint32) {
		family := &legacyFamilies[0]
		if six {
			family = &legacyFamilies[1]
		}
		table := legacyTable{family: family, underflow: [5]uint32{0, underflow, underflow}, entries: entries}
		if n := len(table.dropsBoxes()); n > 2 {
			t.Errorf("%d chains drop", n)
		}
	})
}

func testNamespace(t *testing.T) netns.NsHandle {
	t.Helper()
	ns, err := namespace.New()
	if err != nil {
		t.Fatalf("network namespaces are needed, run as root: %v", err)
	}
	t.Cleanup(func() { _ = ns.Close() })
	return ns
}
