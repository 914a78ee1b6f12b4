// Package rootfs writes the files of a new box into its root: its first process, user, names and certificates, in every
// place where programs look for them. The image is not trusted: links cannot lead out of the root, and reads are bounded.
package rootfs

import (
	"bytes"
	"crypto/rand"
	"crypto/x509"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"runtime"
	"strings"

	gossh "golang.org/x/crypto/ssh"

	"boxgate/launcher/files"
)

// Identity has the individual settings of a box's root.
type Identity struct {
	Hostname string
	Account  Account
	DNS      []netip.Addr // its resolvers; may be empty
	Git      GitIdentity
	CA       []byte // PEM certificates trusted in addition to the public roots; may be empty
	Roots    []byte // PEM certificates trusted like public roots; may be empty
	Agents   []byte // introduction for agents; may be empty
	Files    []HomeFile
	Restored bool // the root has the files of another box, whose CA must be removed
}

// PrepareNew writes the files of a box into a fresh root without running processes: its names, its user, its first process and
// its certificates.
func (b *Root) PrepareNew(is Identity) error {
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"its first process", func() error { return b.installInit() }},
		{"its home directory", func() error { return b.makeHome(is.Account, is.Restored) }},
		{"its other home directories", func() error { return b.linkHomes(is.Account) }},
		{"its user", func() error { return b.addUser(is.Account) }},
		{"its names", func() error { return b.writeNames(is) }},
		{"its git identity", func() error { return b.writeGit(is.Git) }},
		{"its certificates", func() error { return b.trust(is.CA, is.Roots) }},
		{"its introduction for agents", func() error { return b.writeAgents(is.Agents) }},
		{"the files of its agent", func() error { return b.writeHome(is.Account, is.Files) }},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("cannot write %s: %w", step.what, err)
		}
	}
	return nil
}

// AgentsPath is the path of the introduction for agents.
const AgentsPath = "/etc/boxgate/AGENTS.md"

// writeAgents writes the introduction for agents, if there is one.
func (b *Root) writeAgents(text []byte) error {
	if len(text) == 0 {
		return nil
	}
	return b.replace(AgentsPath, text, 0o644)
}

// mountPoints are the directories that the runtime mounts on. An image may lack them.
var mountPoints = []string{"/proc", "/sys", "/dev", "/tmp"}

// writeNames writes the box's host name and resolvers.
func (b *Root) writeNames(is Identity) error {
	host := is.Hostname
	hosts := "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\t" + host + "\n"
	for _, f := range []struct{ name, content string }{
		{"/etc/hostname", host + "\n"},
		{"/etc/hosts", hosts},
		{"/etc/resolv.conf", resolvConf(is.DNS)},
	} {
		if err := b.replace(f.name, []byte(f.content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// resolvConf lists the resolvers. The C library reads three at most. Without any, it would query 127.0.0.1, where no server
// runs.
func resolvConf(servers []netip.Addr) string {
	var s strings.Builder
	for i, a := range servers {
		if i == 3 {
			break
		}
		fmt.Fprintf(&s, "nameserver %s\n", a.Unmap())
	}
	s.WriteString("options edns0\n")
	return s.String()
}

// PrepareRestart writes the files that a box needs to start again. The box may change all others. If the box has put something
// else (a pipe, a dangling link) where the runtime needs a file or a directory, that is moved aside. No process runs in the
// root.
func (b *Root) PrepareRestart(account Account) error {
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"its first process", b.reinstallInit},
		{"its mount points", b.remakeMountPoints},
		{"its home directory", func() error { return b.remakeHome(account) }},
		{"its user", func() error { return b.reopenUsers(account) }},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("cannot write %s: %w", step.what, err)
		}
	}
	return nil
}

func (b *Root) reinstallInit() error {
	if b.isDir(InitPath) {
		if err := b.moveAside(InitPath); err != nil {
			return err
		}
	}
	return b.installInit()
}

// remakeMountPoints makes the directories that the runtime mounts on, and replaces links.
func (b *Root) remakeMountPoints() error {
	for _, name := range mountPoints {
		if fi, err := b.root.Lstat(name[1:]); err == nil && fi.IsDir() {
			continue
		}
		if err := b.remake(name, 0); err != nil {
			return err
		}
	}
	return nil
}

// remake makes a directory, and moves an existing file of that name aside.
func (b *Root) remake(name string, owner int) error {
	if err := b.moveAside(name); err != nil {
		return err
	}
	return b.mkdir(name, 0o755, owner)
}

// moveAside renames a file to another name in its directory. A missing one is not an error.
func (b *Root) moveAside(name string) error {
	p, err := files.ResolveParent(b.root, name)
	if err != nil {
		return err
	}
	if _, err := b.root.Lstat(p); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return b.root.Rename(p, p+".aside-"+rand.Text())
}

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

// GitIdentity is the author of commits in a box, unless the configuration of a user or repository sets another.
type GitIdentity struct{ Name, Email string }

const (
	gitConfig = "/etc/gitconfig"
	gitBegin  = "# Begin of what the gateway wrote\n"
	gitEnd    = "# End of what the gateway wrote\n"
)

// writeGit writes the identity into git's system configuration, and replaces an earlier one. The rest of the file stays.
func (b *Root) writeGit(is GitIdentity) error {
	old, err := b.read(gitConfig)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return b.write(gitConfig, []byte(is.insertInto(string(old))), 0o644)
}

// insertInto puts the identity at the end of a configuration: of several values the last one counts.
func (is GitIdentity) insertInto(config string) string {
	if before, rest, ok := strings.Cut(config, gitBegin); ok {
		_, after, _ := strings.Cut(rest, gitEnd)
		config = before + after
	}
	if config != "" && !strings.HasSuffix(config, "\n") {
		config += "\n"
	}
	if is == (GitIdentity{}) {
		return config
	}
	return config + gitBegin + "[user]\n\tname = " + gitValue(is.Name) + "\n\temail = " + gitValue(is.Email) + "\n" + gitEnd
}

// gitValue quotes a value of a configuration; see git-config(1), "Syntax".
func gitValue(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\t", `\t`).Replace(s) + `"`
}

// knownHostsPath is OpenSSH's system-wide file of host keys.
const knownHostsPath = "/etc/ssh/ssh_known_hosts"

// KnownHosts returns the lines of ssh_known_hosts for a box that trusts a CA, given in PEM. With them, the box accepts its gateway
// as any host.
func KnownHosts(ca []byte) ([]byte, error) {
	certs, err := parseCA(ca)
	if err != nil {
		return nil, err
	}
	return knownHosts(certs)
}

func knownHosts(certs []*x509.Certificate) ([]byte, error) {
	var out bytes.Buffer
	for _, c := range certs {
		key, err := gossh.NewPublicKey(c.PublicKey)
		if err != nil {
			return nil, fmt.Errorf("the box's CA has no key for SSH: %w", err)
		}
		fmt.Fprintf(&out, "* %s %s\n", bytes.TrimSpace(gossh.MarshalAuthorizedKey(key)), c.Subject.CommonName)
	}
	return out.Bytes(), nil
}

// writeKnownHosts makes SSH clients in the box accept the gateway as any host. It removes the key of an earlier box with these
// files.
func (b *Root) writeKnownHosts(certs []*x509.Certificate) error {
	lines, err := knownHosts(certs)
	if err != nil {
		return err
	}
	old, err := b.read(knownHostsPath)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var out bytes.Buffer
	for line := range bytes.Lines(old) {
		if !bytes.Contains(line, []byte(" "+boxCAName)) {
			out.Write(line)
		}
	}
	if n := out.Len(); n > 0 && out.Bytes()[n-1] != '\n' {
		out.WriteByte('\n')
	}
	out.Write(lines)
	return b.write(knownHostsPath, out.Bytes(), 0o644)
}
