package host

import (
	"context"

	"boxgate/host/meter"
	"boxgate/host/state"
	"boxgate/host/usage"
	"boxgate/policy"
)

// openMeter goes on counting what boxes use.
func (p *parts) openMeter(context.Context) (err error) {
	p.meter, err = meter.Open(meter.Config{
		Period: p.cfg.Limits.QuotaPeriod, Boxes: p.boxes.IDs, Kernel: usage.NewCounters(p.boxes, p.firewall, state.Sandboxes{Launcher: p.launcher}), Store: p.store, Log: p.log,
	})
	if err != nil {
		return err
	}
	p.launcher.OnEnd(func(id policy.BoxID) { p.meter.Read(id) })
	return p.metrics.Register(p.meter)
}
