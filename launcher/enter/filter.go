package enter

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/elastic/go-seccomp-bpf/arch"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Offsets in struct seccomp_data. Arguments have 64 bits, little-endian.
const (
	atNumber = 0
	atArch   = 4
	atArgs   = 16
)

// newestCall is the last call that libseccomp 2.5.4 knows (set_mempolicy_home_node, of Linux 5.17). Debian 12 has that version,
// the oldest that boxes run with. A runtime ignores what its libseccomp does not know, so a command that may make a later
// call could do more than the box's first process. Numbers are the same on all architectures since Linux 5.1; numbers
// from privateCalls on are ARM's own.
const (
	newestCall   = 450
	privateCalls = 0xf0000
)

// knownCall reports whether libseccomp 2.5.4 knows a call of the table.
func knownCall(name string, number int) bool {
	return (number <= newestCall || number >= privateCalls) && name != "uretprobe" // Linux 6.11, with a number among older ones
}

// x32Bit marks calls of the x32 ABI, which has the same architecture as x86-64.
const x32Bit = 0x40000000

// architectures are the architectures of profiles that can be compiled.
var architectures = map[specs.Arch]*arch.Info{
	specs.ArchX86_64: arch.X86_64, specs.ArchX86: arch.I386, specs.ArchAARCH64: arch.AARCH64, specs.ArchARM: arch.ARM,
}

// verdict is the filter's answer to a call: the action if all conditions of the first rule that matches do, or else the
// last resort.
type verdict struct {
	rules []rule
	last  uint32
}

type rule struct {
	args   []specs.LinuxSeccompArg
	action uint32
}

// Compile compiles the seccomp profile of a runtime's configuration, given as JSON, like the runtimes do with libseccomp: calls of another
// architecture, and of x32, kill the thread; calls newer than all in the profile fail with ENOSYS, as with runc. Calls newer
// than [newestCall] are refused even if the profile allows them, since the box's first process may lack them. It
// returns an error for a profile with features that boxes do not use.
func Compile(profile []byte) ([]unix.SockFilter, error) {
	var s *specs.LinuxSeccomp
	if err := json.Unmarshal(profile, &s); err != nil {
		return nil, err
	}
	if s == nil || len(s.Flags) > 0 || s.ListenerPath != "" || len(s.Architectures) == 0 {
		return nil, errors.New("the seccomp profile is not one of boxes")
	}
	var out []unix.SockFilter
	for _, name := range s.Architectures {
		info := architectures[name]
		if info == nil {
			return nil, fmt.Errorf("seccomp profiles with %s are not supported", name)
		}
		body, err := compileFor(s, info)
		if err != nil {
			return nil, err
		}
		out = append(out, load(atArch), jump(unix.BPF_JEQ, uint32(info.ID), 1, 0), skip(len(body)))
		out = append(out, body...)
	}
	out = append(out, ret(unix.SECCOMP_RET_KILL_THREAD))
	if len(out) > unix.BPF_MAXINSNS {
		return nil, errors.New("the seccomp profile is too long")
	}
	return out, nil
}

// compileFor returns the part of the filter for one architecture. Each path through it ends with a return.
func compileFor(s *specs.LinuxSeccomp, info *arch.Info) ([]unix.SockFilter, error) {
	fallback, err := action(s.DefaultAction, s.DefaultErrnoRet)
	if err != nil {
		return nil, err
	}
	calls, err := verdicts(s, info, fallback)
	if err != nil || len(calls) == 0 {
		return nil, cmp.Or(err, errors.New("the seccomp profile has no calls"))
	}
	numbers := slices.Sorted(maps.Keys(calls))
	steps := []step{{0, verdict{last: fallback}}}
	for _, n := range numbers {
		steps = append(steps, step{uint32(n), *calls[n]}, step{uint32(n) + 1, verdict{last: fallback}})
	}
	steps = append(steps, step{uint32(numbers[len(numbers)-1]) + 1, verdict{last: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)}})
	if info == arch.X86_64 {
		steps = append(steps, step{x32Bit, verdict{last: unix.SECCOMP_RET_KILL_THREAD}})
	}
	tree, err := search(merge(steps))
	return append([]unix.SockFilter{load(atNumber)}, tree...), err
}

// verdicts returns the verdict for each call that the profile names and the architecture has.
func verdicts(s *specs.LinuxSeccomp, info *arch.Info, fallback uint32) (map[int]*verdict, error) {
	calls, certain := map[int]*verdict{}, map[int]bool{}
	for _, entry := range s.Syscalls {
		act, err := action(entry.Action, entry.ErrnoRet)
		if err != nil {
			return nil, err
		}
		for _, name := range entry.Names {
			n, ok := info.SyscallNames[name]
			if !ok || !knownCall(name, n) {
				continue // libseccomp ignores unknown names too
			}
			v := calls[n]
			if v == nil {
				v = &verdict{last: fallback}
				calls[n] = v
			}
			switch {
			case len(entry.Args) > 0:
				v.rules = append(v.rules, rule{entry.Args, act})
			case certain[n] && v.last != act:
				return nil, fmt.Errorf("the seccomp profile contradicts itself on %s", name)
			default:
				v.last, certain[n] = act, true
			}
		}
	}
	return calls, nil
}

// action returns the value that a filter returns for an action.
func action(a specs.LinuxSeccompAction, errno *uint) (uint32, error) {
	switch a {
	case specs.ActAllow:
		return unix.SECCOMP_RET_ALLOW, nil
	case specs.ActErrno:
		code := uint(unix.EPERM)
		if errno != nil {
			code = *errno
		}
		if code > 4095 {
			return 0, fmt.Errorf("error number %d in the seccomp profile", code)
		}
		return unix.SECCOMP_RET_ERRNO | uint32(code), nil
	}
	return 0, fmt.Errorf("action %s of the seccomp profile is not supported", a)
}

// step is the verdict for calls from a number on, up to the next step.
type step struct {
	from uint32
	verdict
}

// merge drops steps of no length, and joins equal neighbours. steps are ordered, later ones win.
func merge(steps []step) []step {
	var out []step
	for _, s := range steps {
		if n := len(out); n > 0 && out[n-1].from == s.from {
			out = out[:n-1]
		}
		if n := len(out); n > 0 && len(s.rules)+len(out[n-1].rules) == 0 && out[n-1].last == s.last {
			continue
		}
		out = append(out, s)
	}
	return out
}

// search returns a binary search among steps for the number in the accumulator.
func search(steps []step) ([]unix.SockFilter, error) {
	if len(steps) == 1 {
		return steps[0].leaf()
	}
	half := len(steps) / 2
	low, err := search(steps[:half])
	if err != nil {
		return nil, err
	}
	high, err := search(steps[half:])
	if err != nil {
		return nil, err
	}
	out := append([]unix.SockFilter{jump(unix.BPF_JGE, steps[half].from, 0, 1), skip(len(low))}, low...)
	return append(out, high...), nil
}

// leaf returns the instructions for one verdict.
func (v verdict) leaf() ([]unix.SockFilter, error) {
	var out []unix.SockFilter
	for _, r := range v.rules {
		body := []unix.SockFilter{ret(r.action)}
		for _, a := range slices.Backward(r.args) { // from the end, since each jumps over the rest
			test, err := condition(a, len(body))
			if err != nil {
				return nil, err
			}
			body = append(test, body...)
		}
		out = append(out, body...)
	}
	return append(out, ret(v.last)), nil
}

// condition returns a test of an argument that jumps over rest instructions unless it holds.
func condition(a specs.LinuxSeccompArg, rest int) ([]unix.SockFilter, error) {
	if a.Index > 5 || rest > 200 {
		return nil, fmt.Errorf("condition %+v of the seccomp profile is not supported", a)
	}
	low, high := load(atArgs+8*uint32(a.Index)), load(atArgs+8*uint32(a.Index)+4)
	no := uint8(rest)
	switch a.Op {
	case specs.OpEqualTo:
		return []unix.SockFilter{
			low, jump(unix.BPF_JEQ, uint32(a.Value), 0, no+2),
			high, jump(unix.BPF_JEQ, uint32(a.Value>>32), 0, no),
		}, nil
	case specs.OpNotEqual:
		return []unix.SockFilter{
			low, jump(unix.BPF_JEQ, uint32(a.Value), 0, 2),
			high, jump(unix.BPF_JEQ, uint32(a.Value>>32), no, 0),
		}, nil
	case specs.OpMaskedEqual:
		return []unix.SockFilter{
			low, and(uint32(a.Value)), jump(unix.BPF_JEQ, uint32(a.ValueTwo), 0, no+3),
			high, and(uint32(a.Value >> 32)), jump(unix.BPF_JEQ, uint32(a.ValueTwo>>32), 0, no),
		}, nil
	}
	return comparison(a, low, high, no)
}

// comparison is a condition on the order of an argument and a value. It compares the higher words first.
func comparison(a specs.LinuxSeccompArg, low, high unix.SockFilter, no uint8) ([]unix.SockFilter, error) {
	lowValue, highValue := uint32(a.Value), uint32(a.Value>>32)
	last := map[specs.LinuxSeccompOperator]unix.SockFilter{
		specs.OpGreaterEqual: jump(unix.BPF_JGE, lowValue, 0, no), specs.OpGreaterThan: jump(unix.BPF_JGT, lowValue, 0, no),
		specs.OpLessThan: jump(unix.BPF_JGE, lowValue, no, 0), specs.OpLessEqual: jump(unix.BPF_JGT, lowValue, no, 0),
	}[a.Op]
	above, below := uint8(3), no+2 // to the end of the test if it holds, over the rest if not
	switch a.Op {
	case specs.OpGreaterEqual, specs.OpGreaterThan:
	case specs.OpLessThan, specs.OpLessEqual:
		above, below = no+3, 2
	default:
		return nil, fmt.Errorf("condition %+v of the seccomp profile is not supported", a)
	}
	return []unix.SockFilter{high, jump(unix.BPF_JGT, highValue, above, 0), jump(unix.BPF_JEQ, highValue, 0, below), low, last}, nil
}

// Instructions of classic BPF.

func load(at uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
}

func and(k uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: k}
}

func jump(how uint16, k uint32, yes, no uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | how | unix.BPF_K, K: k, Jt: yes, Jf: no}
}

func skip(n int) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JA, K: uint32(n)}
}

func ret(k uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k}
}
