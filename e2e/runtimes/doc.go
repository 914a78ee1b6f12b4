// Package runtimes tests the main functions of boxes under each installed OCI runtime: runc, crun and runsc (gVisor).
// The output lists the missing ones; `gateway check` explains how to install them.
package runtimes
