// Package link makes, repairs and deletes the interface pairs that join boxes to the host, with the eBPF filter that marks
// packets from boxes as not judged.
package link
