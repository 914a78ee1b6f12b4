package state

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"boxgate/api"
)

// CountStates registers the metric of boxes by state.
func CountStates(metrics *prometheus.Registry, all *Table) error {
	var errs []error
	for _, s := range []api.Status{api.StatusCreating, api.StatusIdle, api.StatusRunning, api.StatusPaused, api.StatusError, api.StatusGone} {
		errs = append(errs, metrics.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "boxgate_boxes", Help: "Boxes by their state.", ConstLabels: prometheus.Labels{"state": string(s)},
		}, func() float64 { return all.count(s) })))
	}
	return errors.Join(errs...)
}

// count returns the number of boxes in a state.
func (t *Table) count(s api.Status) (n float64) {
	for _, b := range t.All() {
		if b.View().Status == s {
			n++
		}
	}
	return n
}
