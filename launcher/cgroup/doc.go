// Package cgroup ends what is in the control groups of boxes, in whatever hierarchies the host has.
package cgroup
