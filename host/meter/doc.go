// Package meter adds up what boxes use: CPU time, memory, bytes at their interfaces, and files.
//
// The kernel counts, for each control group and each interface; the meter reads its counters every few seconds and when
// somebody asks. A counter starts from zero when a box starts anew or the host does, so the meter keeps totals, and stores
// them with what each counter said: a gateway that is killed and started again goes on from there, and counts nothing twice
// and, of boxes that went on meanwhile, nothing less. What a counter has counted since it was last read is lost when it goes
// without notice, as when the host loses power: [Interval] at most.
package meter
