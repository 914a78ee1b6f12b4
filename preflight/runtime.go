package preflight

import (
	"fmt"
	"os/exec"

	"boxgate/launcher/oci"
)

// needRuntime requires the OCI runtime of boxes, given by name or path, and warns about missing features.
func needRuntime(program string) error {
	if _, err := exec.LookPath(program); err != nil {
		return fmt.Errorf("%s is missing: %s, or name another OCI runtime in launcher.runtime", program, oci.ByName(program).Install)
	}
	return runtimeLacks(program, "/sys/fs/cgroup")
}

// runtimeLacks warns about features missing from a runtime on a host whose cgroups are mounted at a path.
func runtimeLacks(program, cgroups string) error {
	if lacks := oci.ByName(program).Missing(cgroups); lacks != "" {
		return Warnf("%s", lacks)
	}
	return nil
}
