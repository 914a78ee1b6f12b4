// Package container writes the OCI runtime's configuration of boxes and of the commands in them: privileges, seccomp profile and
// limits. This is what keeps a box in.
package container
