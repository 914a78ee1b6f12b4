// Package container writes the OCI runtime's configuration of boxes and of the commands in them: privileges, seccomp
// profile and limits. This is what confines a box.
package container
