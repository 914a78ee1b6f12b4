package load

import (
	"os"
	"time"

	"boxgate/bench/proc"
)

// clock holds the readings at the start of a measurement.
type clock struct {
	g         *generator
	pids      []int
	self      []int
	start     time.Time
	cpu, mine proc.Times
	units     int64
	softirq   int64
	packets   int64
}

// start reads the clocks before the measured part.
func (g *generator) start() *clock {
	c := &clock{g: g, pids: g.PIDs, self: []int{os.Getpid()}}
	c.mine, c.cpu = proc.CPU(c.self), proc.CPU(c.pids)
	c.softirq, c.packets = proc.Softirq(), proc.Packets()
	c.start, c.units = time.Now(), g.units.Load()
	return c
}

// stop reads them again and returns the differences.
func (c *clock) stop() Result {
	units, took := c.g.units.Load()-c.units, time.Since(c.start)
	return Result{
		Units: units, Seconds: took.Seconds(), CPU: proc.CPU(c.pids).Since(c.cpu), Client: proc.CPU(c.self).Since(c.mine),
		Softirq: proc.Softirq() - c.softirq, Packets: proc.Packets() - c.packets,
	}
}
