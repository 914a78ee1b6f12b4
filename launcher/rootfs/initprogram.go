package rootfs

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"runtime"
)

// InitPath is the path of a box's first process in its root.
const InitPath = "/.boxgate-init"

// The first process of a box only has to exist: it ignores SIGCHLD, so that the kernel reaps every orphan of the box
// automatically, and sleeps forever. It must run in any image, so it cannot be a program of the image, and there is one in
// every box, so it should not take megabytes, as a Go program would. It has a dozen instructions, which the launcher writes
// itself:
//
//	rt_sigaction(SIGCHLD, {SIG_IGN}, NULL, 8)
//	for { pause() }
//
// Only SIGKILL from outside ends it: the kernel does not deliver signals without a handler to the first process of a
// PID namespace.
var initCode = map[string]struct {
	machine elf.Machine
	code    []byte // followed by the struct sigaction
}{
	"amd64": {elf.EM_X86_64, []byte{
		0xb8, 0x0d, 0x00, 0x00, 0x00, // mov  eax, 13        rt_sigaction
		0xbf, 0x11, 0x00, 0x00, 0x00, // mov  edi, 17        SIGCHLD
		0x48, 0x8d, 0x35, 0x13, 0x00, 0x00, 0x00, // lea  rsi, [rip+19]  the struct
		0x31, 0xd2, // xor  edx, edx
		0x41, 0xba, 0x08, 0x00, 0x00, 0x00, // mov  r10d, 8        size of a signal set
		0x0f, 0x05, // syscall
		0xb8, 0x22, 0x00, 0x00, 0x00, // mov  eax, 34        pause
		0x0f, 0x05, // syscall
		0xeb, 0xf7, // jmp  -9
	}},
	"arm64": {elf.EM_AARCH64, instructions(
		0xd28010c8, // mov  x8, #134       rt_sigaction
		0xd2800220, // mov  x0, #17        SIGCHLD
		0x10000181, // adr  x1, .+48       the struct
		0xd2800002, // mov  x2, #0
		0xd2800103, // mov  x3, #8         size of a signal set
		0xd4000001, // svc  #0
		0xd2800000, // mov  x0, #0
		0xd2800001, // mov  x1, #0
		0xd2800002, // mov  x2, #0
		0xd2800003, // mov  x3, #0
		0xd2800004, // mov  x4, #0
		0xd2800928, // mov  x8, #73        ppoll without descriptors or time limit
		0xd4000001, // svc  #0
		0x17fffff9, // b    .-28           to mov x0, #0
	)},
}

func instructions(words ...uint32) []byte {
	var code []byte
	for _, w := range words {
		code = binary.LittleEndian.AppendUint32(code, w)
	}
	return code
}

// ignoreAction is a struct sigaction in the kernel's layout: handler SIG_IGN, no flags, no restorer, no mask.
var ignoreAction = []byte{1, 31: 0}

// initProgram returns the program as a static ELF executable for a GOARCH.
func initProgram(arch string) ([]byte, error) {
	target, ok := initCode[arch]
	if !ok {
		return nil, fmt.Errorf("boxes cannot run on %s yet: amd64 and arm64 only", arch)
	}
	const base, headers = 0x400000, 64 + 56
	text := append(bytes.Clone(target.code), ignoreAction...)
	size := uint64(headers + len(text))
	file := elf.Header64{
		Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_EXEC), Machine: uint16(target.machine), Version: uint32(elf.EV_CURRENT),
		Entry: base + headers, Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 1,
	}
	segment := elf.Prog64{
		Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X),
		Vaddr: base, Paddr: base, Filesz: size, Memsz: size, Align: 0x10000,
	}
	var out bytes.Buffer
	for _, part := range []any{file, segment, text} {
		if err := binary.Write(&out, binary.LittleEndian, part); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), nil
}

// installInit writes the first process into the box.
func (b *Root) installInit() error {
	program, err := initProgram(runtime.GOARCH)
	if err != nil {
		return err
	}
	return b.replace(InitPath, program, 0o555)
}
