// Package cgroup freezes, measures and kills the processes in the control groups of boxes, in all hierarchies of the host.
package cgroup
