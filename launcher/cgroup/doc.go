// Package cgroup freezes, measures and kills what is in the control groups of boxes, in all hierarchies that the host has.
package cgroup
