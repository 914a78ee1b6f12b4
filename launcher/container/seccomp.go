package container

import (
	"slices"

	"github.com/moby/profiles/seccomp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// withheld are system calls that the default profile allows and boxes do not get. The contexts of io_setup come out of
// one supply for the whole host (fs.aio-max-nr), which a single process can empty.
var withheld = []string{"io_setup"}

// seccompProfile is the default profile of the runtimes less what is withheld. Programs are told that this kernel has no
// such call, for which they are prepared.
func seccompProfile(config *specs.Spec) (*specs.LinuxSeccomp, error) {
	// The profile opens what the capabilities of commands allow, so it is worked out with those.
	forProfile := *config
	forProfile.Process = &specs.Process{Capabilities: boundTo(capabilities)}
	profile, err := seccomp.GetDefaultProfile(&forProfile)
	if err != nil {
		return nil, err
	}
	for i := range profile.Syscalls {
		profile.Syscalls[i].Names = slices.DeleteFunc(slices.Clone(profile.Syscalls[i].Names), func(name string) bool {
			return slices.Contains(withheld, name)
		})
	}
	profile.Syscalls = append(profile.Syscalls, specs.LinuxSyscall{
		Names: withheld, Action: specs.ActErrno, ErrnoRet: new(uint(unix.ENOSYS)),
	})
	return profile, nil
}
