// Package container writes the OCI runtime's configuration of boxes and of commands in them: privileges, seccomp profile
// and limits. It determines how a box is confined.
package container
