// Package runtimes runs what boxes are for under each OCI runtime that is present: runc, crun and runsc (gVisor). A run says
// which are not; `gateway check` says how to get them.
package runtimes
