package container

import (
	"slices"

	"github.com/moby/profiles/seccomp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// withheld are system calls that the default profile allows but boxes may not use. The contexts of io_setup are limited
// for the whole host (fs.aio-max-nr), and a single process can use them all.
var withheld = []string{"io_setup"}

// allocation takes space on the disk without a write. Where nothing limits the disk of a box, its writes tell that it fills the disk
// (cgroup.Writes); posix_fallocate of the C library then writes instead.
const allocation = "fallocate"

// seccompProfile is the default profile of the runtimes without what is withheld. Programs get ENOSYS for those calls,
// for which they are prepared. With writesOnly, space on the disk cannot be taken otherwise.
//
// x32 is left out: the filter then kills a thread that makes a call by its numbers. Few kernels are built with it, and it has had
// holes of its own (CVE-2014-0038). It was also a third of what compiling the filter costs, which the runtime does anew for each
// command.
func seccompProfile(config *specs.Spec, writesOnly bool) (*specs.LinuxSeccomp, error) {
	// The profile depends on capabilities, so it is computed with those of commands.
	forProfile := *config
	forProfile.Process = &specs.Process{Capabilities: boundTo(capabilities)}
	profile, err := seccomp.GetDefaultProfile(&forProfile)
	if err != nil {
		return nil, err
	}
	profile.Architectures = slices.DeleteFunc(profile.Architectures, func(a specs.Arch) bool { return a == specs.ArchX32 })
	for i := range profile.Syscalls {
		profile.Syscalls[i].Names = slices.DeleteFunc(slices.Clone(profile.Syscalls[i].Names), func(name string) bool {
			return slices.Contains(withheld, name) || writesOnly && name == allocation
		})
	}
	profile.Syscalls = append(profile.Syscalls, specs.LinuxSyscall{
		Names: withheld, Action: specs.ActErrno, ErrnoRet: new(uint(unix.ENOSYS)),
	})
	if writesOnly {
		profile.Syscalls = append(profile.Syscalls, specs.LinuxSyscall{
			Names: []string{allocation}, Action: specs.ActErrno, ErrnoRet: new(uint(unix.EOPNOTSUPP)),
		})
	}
	return profile, nil
}
