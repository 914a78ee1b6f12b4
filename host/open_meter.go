package host

import (
	"boxgate/host/usage"

	"context"

	"boxgate/host/meter"
	"boxgate/host/state"
	"boxgate/policy"
)

// openMeter goes on counting what boxes use.
func (h *Host) openMeter(context.Context) (err error) {
	p := h.parts
	p.meter, err = meter.Open(meter.Config{
		Period: p.cfg.Limits.QuotaPeriod, Boxes: p.boxes.Ids, Kernel: usage.NewCounters(p.boxes, p.firewall, state.Sandboxes{Launcher: p.launcher}), Store: p.store, Log: p.log,
	})
	if err != nil {
		return err
	}
	p.launcher.OnEnd(func(id policy.BoxID) { p.meter.Read(id) })
	return p.metrics.Register(p.meter)
}
