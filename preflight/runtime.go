package preflight

import (
	"fmt"
	"os/exec"

	"boxgate/launcher/oci"
)

// needRuntime requires the OCI runtime of boxes, given by its name or path, and warns of what boxes lack under it.
func needRuntime(program string) error {
	if _, err := exec.LookPath(program); err != nil {
		return fmt.Errorf("%s is missing: %s, or name another OCI runtime in launcher.runtime", program, oci.ByName(program).Install)
	}
	return runtimeLacks(program, "/sys/fs/cgroup")
}

// runtimeLacks warns of what boxes lack under a runtime on a host whose control groups are mounted at a path.
func runtimeLacks(program, cgroups string) error {
	if lacks := oci.ByName(program).Lacks(cgroups); lacks != "" {
		return Warnf("%s", lacks)
	}
	return nil
}
