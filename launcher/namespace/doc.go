// Package namespace allocates user IDs of the host to boxes, and creates the namespaces for their processes, pinned to
// files.
package namespace
