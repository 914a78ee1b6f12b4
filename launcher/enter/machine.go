package enter

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Descriptors of the entering process, after its standard streams.
const (
	planFD   = 3 // the list; closed when it is mapped
	reportFD = 4 // a socket of packets
	initFD   = 5 // the box's first process, a pidfd; closed when the namespaces are entered
	freeFD   = 6 // all from here on are closed first, except executableFD

	executableFD = freeFD // [Command.Executable], if there is one; closed when it is executed
)

// Addresses in the entering process.
const (
	planAt   = 0x10000000
	planSize = 16 << 20
	opsAt    = planAt + opSize // before it is the report: two words of 32 bits, see [report]
	opSize   = 64
)

// machine executes a list of system calls. It maps the list and makes one call after the other: each entry has the number
// of the call, its six arguments, and two words of 32 bits: up to four error numbers that are ignored, a byte each, and the
// number of bytes of the list to skip if the call returns more than zero. After any other error it reports the offset of
// the entry and the error number, and exits.
//
// Only architectures are listed on which the tests of this package have run; on others, commands are started by the
// runtime.
var machine = map[string]struct {
	machine elf.Machine
	code    []byte
}{
	"amd64": {elf.EM_X86_64, []byte{
		0xb8, 0x09, 0x00, 0x00, 0x00, // mov  eax, 9           mmap
		0xbf, 0x00, 0x00, 0x00, 0x10, // mov  edi, planAt
		0xbe, 0x00, 0x00, 0x00, 0x01, // mov  esi, planSize
		0xba, 0x03, 0x00, 0x00, 0x00, // mov  edx, 3           PROT_READ | PROT_WRITE
		0x41, 0xba, 0x12, 0x00, 0x00, 0x00, // mov  r10d, 18   MAP_PRIVATE | MAP_FIXED
		0x41, 0xb8, 0x03, 0x00, 0x00, 0x00, // mov  r8d, planFD
		0x45, 0x31, 0xc9, // xor  r9d, r9d
		0x0f, 0x05, // syscall
		0x41, 0xbc, 0x00, 0x00, 0x00, 0x10, // mov  r12d, planAt
		0x49, 0x8d, 0x5c, 0x24, 0x40, // lea  rbx, [r12+opSize]
		0x4c, 0x39, 0xe0, // cmp  rax, r12
		0x75, 0x5e, // jne  exit
		// loop:
		0x48, 0x8b, 0x03, // mov  rax, [rbx]
		0x48, 0x8b, 0x7b, 0x08, // mov  rdi, [rbx+8]
		0x48, 0x8b, 0x73, 0x10, // mov  rsi, [rbx+16]
		0x48, 0x8b, 0x53, 0x18, // mov  rdx, [rbx+24]
		0x4c, 0x8b, 0x53, 0x20, // mov  r10, [rbx+32]
		0x4c, 0x8b, 0x43, 0x28, // mov  r8, [rbx+40]
		0x4c, 0x8b, 0x4b, 0x30, // mov  r9, [rbx+48]
		0x0f, 0x05, // syscall
		0x8b, 0x4b, 0x38, // mov  ecx, [rbx+56]    ignored errors
		0x48, 0x85, 0xc0, // test rax, rax
		0x78, 0x0e, // js   failed
		0x74, 0x06, // jz   next
		0x8b, 0x53, 0x3c, // mov  edx, [rbx+60]    bytes to skip
		0x48, 0x01, 0xd3, // add  rbx, rdx
		// next:
		0x48, 0x83, 0xc3, 0x40, // add  rbx, opSize
		0xeb, 0xcd, // jmp  loop
		// failed:
		0xf7, 0xd8, // neg  eax
		// ignored:
		0x38, 0xc1, // cmp  cl, al
		0x74, 0xf4, // je   next
		0xc1, 0xe9, 0x08, // shr  ecx, 8
		0x75, 0xf7, // jnz  ignored
		0x41, 0x89, 0x44, 0x24, 0x04, // mov  [r12+4], eax
		0x44, 0x29, 0xe3, // sub  ebx, r12d
		0x41, 0x89, 0x1c, 0x24, // mov  [r12], ebx
		0xb8, 0x01, 0x00, 0x00, 0x00, // mov  eax, 1   write
		0xbf, 0x04, 0x00, 0x00, 0x00, // mov  edi, reportFD
		0x4c, 0x89, 0xe6, // mov  rsi, r12
		0xba, 0x08, 0x00, 0x00, 0x00, // mov  edx, 8
		0x0f, 0x05, // syscall
		// exit:
		0xb8, 0xe7, 0x00, 0x00, 0x00, // mov  eax, 231 exit_group
		0xbf, 0x01, 0x00, 0x00, 0x00, // mov  edi, 1
		0x0f, 0x05, // syscall
	}},
}

// program returns the machine as a static ELF executable for a GOARCH.
func program(arch string) ([]byte, error) {
	target, ok := machine[arch]
	if !ok {
		return nil, fmt.Errorf("there is no code for %s", arch)
	}
	const base, headers = 0x400000, 64 + 2*56
	size := uint64(headers + len(target.code))
	file := elf.Header64{
		Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_EXEC), Machine: uint16(target.machine), Version: uint32(elf.EV_CURRENT),
		Entry: base + headers, Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 2,
	}
	segment := elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Vaddr: base, Paddr: base, Filesz: size, Memsz: size, Align: 0x10000}
	stack := elf.Prog64{Type: uint32(elf.PT_GNU_STACK), Flags: uint32(elf.PF_R | elf.PF_W)} // not executable
	var out bytes.Buffer
	for _, part := range []any{file, segment, stack, target.code} {
		if err := binary.Write(&out, binary.LittleEndian, part); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), nil
}

// Program is the program of entering processes, in memory. It is safe for concurrent use.
type Program struct{ file *os.File }

// New makes the program and tries it. An error is the reason why this host or this process cannot enter boxes; their
// commands must then be started by the runtime.
func New() (*Program, error) {
	if err := checkDumpable(suidDumpable); err != nil {
		return nil, err
	}
	code, err := program(runtime.GOARCH)
	if err != nil {
		return nil, err
	}
	file, err := sealedExecutable(code)
	if err != nil {
		return nil, fmt.Errorf("a program in memory: %w", err)
	}
	p := &Program{file}
	if err := p.try(); err != nil {
		file.Close()
		return nil, err
	}
	return p, nil
}

// suidDumpable has the kernel's setting for processes that change their user (proc(5)).
const suidDumpable = "/proc/sys/fs/suid_dumpable"

// checkDumpable returns an error if processes that change their user can be traced, by the file with that setting: an
// entering process would be open to the box from there to its next call, which forbids it.
func checkDumpable(file string) error {
	value, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if v := string(bytes.TrimSpace(value)); v != "0" && v != "2" {
		return fmt.Errorf("%s is %s, so that boxes could trace processes that enter them", file, v)
	}
	return nil
}

// Close releases the program. Processes that it has started are not affected.
func (p *Program) Close() error { return p.file.Close() }

// lowestFD keeps the program's descriptor above those that a starting process replaces.
const lowestFD = 64

// sealedExecutable returns an anonymous file that can be executed and never changed. It is open for reading only: a file
// that any process has open for writing cannot be executed, so no process may be forked while it is written.
func sealedExecutable(content []byte) (*os.File, error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	w, err := unix.MemfdCreate("boxgate-enter", flags|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3, all such files can be executed
		w, err = unix.MemfdCreate("boxgate-enter", flags)
	}
	if err != nil {
		return nil, err
	}
	defer unix.Close(w)
	if _, err := unix.Write(w, content); err != nil {
		return nil, err
	}
	if err := unix.Fchmod(w, 0o555); err != nil {
		return nil, err
	}
	const seals = unix.F_SEAL_WRITE | unix.F_SEAL_GROW | unix.F_SEAL_SHRINK | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(uintptr(w), unix.F_ADD_SEALS, seals); err != nil {
		return nil, err
	}
	low, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", w), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(low)
	r, err := unix.FcntlInt(uintptr(low), unix.F_DUPFD_CLOEXEC, lowestFD)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(r), "boxgate-enter"), nil
}
