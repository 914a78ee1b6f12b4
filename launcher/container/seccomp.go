package container

import (
	"slices"

	"github.com/moby/profiles/seccomp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// withheld are system calls that the default profile allows but boxes may not use. The contexts of io_setup are limited for
// the whole host (fs.aio-max-nr), and a single process can use them all.
var withheld = []string{"io_setup"}

// allocation is the system call that takes disk space without a write. If the disk of a box is not limited, its usage is
// watched through its writes (cgroup.Writes), so this call is refused; posix_fallocate of the C library then writes
// instead.
const allocation = "fallocate"

// seccompProfile returns the default profile of the runtimes without the withheld calls, for which programs get ENOSYS, as
// they expect from old kernels. With writesOnly, disk space can only be taken by writes.
//
// x32 is left out: the filter then kills a thread that makes an x32 call. Few kernels support x32, and it has had its own
// vulnerabilities (CVE-2014-0038). It was also a third of the cost of compiling the filter, which the runtime does again
// for each command.
func seccompProfile(config *specs.Spec, writesOnly bool) (*specs.LinuxSeccomp, error) {
	// The profile depends on capabilities, so it is computed with the capabilities of commands.
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
