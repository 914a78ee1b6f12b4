// Package launchers starts containers by real container engines and OCI runtimes, with `gateway oci` as their runtime.
package launchers
