// Package meter adds up the resource usage of boxes: CPU time, memory, bytes at their interfaces, and files.
//
// The kernel counts per cgroup and per interface; the meter reads these counters every few seconds and on request. A
// counter restarts from zero with its box or the host, so the meter keeps totals, and stores them together with the last
// value of each counter. A gateway that is killed and started again continues from there: it does not count twice, and
// includes the usage of boxes that kept running in between. If a counter disappears without notice, e.g. because the host
// loses power, its growth since the last reading is lost, which is [Interval] at most.
package meter
