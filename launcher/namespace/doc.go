// Package namespace gives each box user IDs of the host and the namespaces that its processes run in, pinned to files.
package namespace
