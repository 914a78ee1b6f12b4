package preflight

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// needRuntime requires the OCI runtime of boxes, and says what boxes lack under it.
func needRuntime(name string) error {
	if _, err := exec.LookPath(name); err != nil {
		remedy := "apt-get install " + filepath.Base(name)
		if filepath.Base(name) == "runsc" {
			remedy = "make runsc builds it; or see https://gvisor.dev/docs/user_guide/install/"
		}
		return fmt.Errorf("%s is missing: %s, or name another OCI runtime in launcher.runtime", name, remedy)
	}
	return runtimeLacks(filepath.Base(name), "/sys/fs/cgroup")
}

// runtimeLacks says what a runtime cannot do on a host with these control groups.
func runtimeLacks(name, cgroups string) error {
	switch name {
	case "runc":
		return nil
	case "crun":
		controllers, err := os.ReadFile(filepath.Join(cgroups, "unified", "cgroup.controllers"))
		if len(bytes.TrimSpace(controllers)) > 0 { // no error: a later version, or a wrapper, may start them
			return Warnf("crun refuses to start boxes on a host that has controllers in control groups of version 1 and of version 2 (%s): "+
				"boot with systemd.unified_cgroup_hierarchy=1, or set launcher.runtime to runc", bytes.TrimSpace(controllers))
		}
		if _, v2 := os.Stat(filepath.Join(cgroups, "cgroup.controllers")); v2 != nil || err == nil {
			return Warnf("under crun, commands have control groups of their own with version 2 alone: here their CPU time is not known, " +
				"to kill one is to kill its process group, and those of sessions outlive a gateway that was killed; set launcher.runtime to runc, or boot with systemd.unified_cgroup_hierarchy=1")
		}
		return nil
	case "runsc":
		return Warnf("under gVisor, commands have no control groups of their own, so their CPU time is not known (that of boxes is), and those of sessions outlive a gateway that was killed; their files are read and written by exec, not by the files API; " +
			"the box's loopback cannot be reached by public URLs, so applications must listen on all addresses; and gateway box selftest cannot test it")
	}
	return Warnf("%s is not among the runtimes that boxgate is tested with (runc, crun, runsc): if boxes do not start, set launcher.runtime to one of these", name)
}
