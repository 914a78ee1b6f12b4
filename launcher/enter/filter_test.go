package enter

import (
	"encoding/json"
	"math/rand/v2"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"boxgate/launcher/container"
	"boxgate/launcher/launchertest"
)

// boxProfile is the profile of boxes.
func boxProfile(t testing.TB) []byte {
	t.Helper()
	config, err := container.Box{Root: "/", Init: "/init", Limits: container.Limits{CPUs: 1, Memory: 1 << 30, Pids: 100}}.Config()
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(config.Linux.Seccomp)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// call is a struct seccomp_data.
type call struct {
	number, arch uint32
	args         [6]uint64
}

func evaluate(t *testing.T, filter []unix.SockFilter, c call) uint32 {
	t.Helper()
	return launchertest.Verdict(t, filter, c.number, c.arch, c.args)
}

const errnoAction = unix.SECCOMP_RET_ERRNO

// TestCompiledFilter: the filter of boxes' profile allows and refuses calls as the profile lists them, on each architecture.
func TestCompiledFilter(t *testing.T) {
	t.Parallel()
	filter, err := Compile(boxProfile(t))
	if err != nil {
		t.Fatal(err)
	}
	const native, old, foreign = unix.AUDIT_ARCH_X86_64, unix.AUDIT_ARCH_I386, unix.AUDIT_ARCH_S390X
	for _, c := range []struct {
		what string
		call
		want uint32
	}{
		{"read", call{0, native, [6]uint64{}}, unix.SECCOMP_RET_ALLOW},
		{"execve", call{59, native, [6]uint64{}}, unix.SECCOMP_RET_ALLOW},
		{"mount", call{165, native, [6]uint64{}}, errnoAction | uint32(unix.EPERM)},
		{"io_setup", call{206, native, [6]uint64{}}, errnoAction | uint32(unix.ENOSYS)},
		{"clone of a process", call{56, native, [6]uint64{17}}, unix.SECCOMP_RET_ALLOW},
		{"clone with a namespace", call{56, native, [6]uint64{unix.CLONE_NEWUSER}}, errnoAction | uint32(unix.EPERM)},
		{"clone3", call{435, native, [6]uint64{}}, errnoAction | uint32(unix.ENOSYS)},
		{"a personality", call{135, native, [6]uint64{0x20008}}, unix.SECCOMP_RET_ALLOW},
		{"a personality beyond 32 bits", call{135, native, [6]uint64{1<<32 | 8}}, errnoAction | uint32(unix.EPERM)},
		{"another personality", call{135, native, [6]uint64{0x40000}}, errnoAction | uint32(unix.EPERM)},
		{"a socket", call{41, native, [6]uint64{2}}, unix.SECCOMP_RET_ALLOW},
		{"vsock", call{41, native, [6]uint64{40}}, errnoAction | uint32(unix.EPERM)},
		{"futex_waitv", call{449, native, [6]uint64{}}, unix.SECCOMP_RET_ALLOW},
		{"mseal, newer than libseccomp 2.5.4", call{462, native, [6]uint64{}}, errnoAction | uint32(unix.ENOSYS)},
		{"uretprobe, newer too", call{335, native, [6]uint64{}}, errnoAction | uint32(unix.EPERM)},
		{"mseal of a 32-bit program", call{462, old, [6]uint64{}}, errnoAction | uint32(unix.ENOSYS)},
		{"a later call", call{4000, native, [6]uint64{}}, errnoAction | uint32(unix.ENOSYS)},
		{"x32", call{x32Bit, native, [6]uint64{}}, unix.SECCOMP_RET_KILL_THREAD},
		{"mount of a 32-bit program", call{21, old, [6]uint64{}}, errnoAction | uint32(unix.EPERM)},
		{"read of a 32-bit program", call{3, old, [6]uint64{}}, unix.SECCOMP_RET_ALLOW},
		{"another architecture", call{0, foreign, [6]uint64{}}, unix.SECCOMP_RET_KILL_THREAD},
	} {
		if got := evaluate(t, filter, c.call); got != c.want {
			t.Errorf("%s: %#x, want %#x", c.what, got, c.want)
		}
	}
}

// TestConditions: each operator compares all 64 bits of an argument, and all conditions of a rule must hold.
func TestConditions(t *testing.T) {
	t.Parallel()
	holds := map[specs.LinuxSeccompOperator]func(arg, v, two uint64) bool{
		specs.OpEqualTo: func(a, v, _ uint64) bool { return a == v }, specs.OpNotEqual: func(a, v, _ uint64) bool { return a != v },
		specs.OpGreaterThan: func(a, v, _ uint64) bool { return a > v }, specs.OpGreaterEqual: func(a, v, _ uint64) bool { return a >= v },
		specs.OpLessThan: func(a, v, _ uint64) bool { return a < v }, specs.OpLessEqual: func(a, v, _ uint64) bool { return a <= v },
		specs.OpMaskedEqual: func(a, v, two uint64) bool { return a&v == two },
	}
	values := []uint64{0, 1, 2, 1 << 31, 1<<32 - 1, 1 << 32, 1<<32 + 1, 1<<63 + 1, 1<<64 - 1}
	for op, holds := range holds {
		for _, v := range values {
			profile := specs.LinuxSeccomp{
				DefaultAction: specs.ActErrno, Architectures: []specs.Arch{specs.ArchX86_64},
				Syscalls: []specs.LinuxSyscall{{Names: []string{"read"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{
					{Index: 1, Op: op, Value: v, ValueTwo: v &^ 1}, {Index: 2, Op: specs.OpEqualTo, Value: 7},
				}}},
			}
			data, err := json.Marshal(profile)
			if err != nil {
				t.Fatal(err)
			}
			filter, err := Compile(data)
			if err != nil {
				t.Fatal(err)
			}
			for _, arg := range values {
				for _, second := range []uint64{7, 8} {
					got := evaluate(t, filter, call{0, unix.AUDIT_ARCH_X86_64, [6]uint64{0, arg, second}}) == unix.SECCOMP_RET_ALLOW
					if want := holds(arg, v, v&^1) && second == 7; got != want {
						t.Errorf("%d %s %d, then %d: allowed %v, want %v", arg, op, v, second, got, want)
					}
				}
			}
		}
	}
}

// TestProfilesThatAreRefused: a profile that this package does not understand completely is not compiled.
func TestProfilesThatAreRefused(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*specs.LinuxSeccomp){
		"no architecture":      func(s *specs.LinuxSeccomp) { s.Architectures = nil },
		"unknown architecture": func(s *specs.LinuxSeccomp) { s.Architectures = []specs.Arch{specs.ArchX32} },
		"flags":                func(s *specs.LinuxSeccomp) { s.Flags = []specs.LinuxSeccompFlag{specs.LinuxSeccompFlagLog} },
		"a listener":           func(s *specs.LinuxSeccomp) { s.ListenerPath = "/x" },
		"no calls":             func(s *specs.LinuxSeccomp) { s.Syscalls = nil },
		"default action":       func(s *specs.LinuxSeccomp) { s.DefaultAction = specs.ActTrace },
		"an action":            func(s *specs.LinuxSeccomp) { s.Syscalls[0].Action = specs.ActNotify },
		"an operator": func(s *specs.LinuxSeccomp) {
			s.Syscalls[0].Args = []specs.LinuxSeccompArg{{Op: "SCMP_CMP_ODD"}}
		},
		"an argument": func(s *specs.LinuxSeccomp) {
			s.Syscalls[0].Args = []specs.LinuxSeccompArg{{Index: 6, Op: specs.OpEqualTo}}
		},
		"a contradiction": func(s *specs.LinuxSeccomp) {
			s.Syscalls = append(s.Syscalls, specs.LinuxSyscall{Names: []string{"read"}, Action: specs.ActErrno})
		},
	} {
		var s specs.LinuxSeccomp
		if err := json.Unmarshal(boxProfile(t), &s); err != nil {
			t.Fatal(err)
		}
		change(&s)
		data, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Compile(data); err == nil {
			t.Errorf("%s: compiled", name)
		}
	}
	for _, text := range []string{"", "null", "{", "[]"} {
		if _, err := Compile([]byte(text)); err == nil {
			t.Errorf("%q: compiled", text)
		}
	}
}

// FuzzCompile: whatever the profile, the filter is one that the kernel accepts, and each path ends with a verdict.
func FuzzCompile(f *testing.F) {
	f.Add(boxProfile(f), uint32(56), uint64(17))
	f.Add([]byte(`{"defaultAction":"SCMP_ACT_ERRNO","architectures":["SCMP_ARCH_X86_64"],"syscalls":[{"names":["read"],"action":"SCMP_ACT_ALLOW"}]}`), uint32(0), uint64(0))
	f.Fuzz(func(t *testing.T, profile []byte, number uint32, arg uint64) {
		filter, err := Compile(profile)
		if err != nil {
			return
		}
		if len(filter) > unix.BPF_MAXINSNS {
			t.Errorf("%d instructions", len(filter))
		}
		for _, arch := range []uint32{unix.AUDIT_ARCH_X86_64, unix.AUDIT_ARCH_I386, unix.AUDIT_ARCH_ARM, rand.Uint32()} {
			evaluate(t, filter, call{number, arch, [6]uint64{arg, arg, arg, arg, arg, arg}})
		}
	})
}
