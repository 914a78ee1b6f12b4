package host

import (
	"errors"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// certificateMetrics tells how long the certificates of public URLs are still valid. There is no label: hosts are as many
// as there are URLs.
func (p *parts) certificateMetrics() error {
	gauge := func(name, help string, value func() float64) error {
		return p.metrics.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value))
	}
	errs := []error{
		gauge("boxgate_certificates", "Certificates of public URLs that are served.", func() float64 { return float64(len(p.certificates.Expiries())) }),
		gauge("boxgate_certificate_days_left", "Days until the first of the served certificates of public URLs expires; negative once it has.",
			func() float64 { return daysLeft(p.certificates.Expiries(), time.Now()) }),
	}
	if p.acme != nil {
		counter := func(name, help string, value func() uint64) error {
			return p.metrics.Register(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(value()) }))
		}
		errs = append(errs,
			gauge("boxgate_certificates_failing", "Hosts of public URLs without a certificate because the last attempt to obtain one failed.",
				func() float64 { return float64(p.acme.Failing()) }),
			counter("boxgate_certificates_obtained_total", "Certificates obtained from an issuer, renewals included.", func() uint64 { return p.acme.Counts().Obtained }),
			counter("boxgate_certificates_failed_total", "Attempts to obtain a certificate that failed with all issuers.", func() uint64 { return p.acme.Counts().Failed }),
		)
	}
	return errors.Join(errs...)
}

// daysLeft is how many days the first of the certificates is still valid; NaN if there is none.
func daysLeft(expiries []time.Time, now time.Time) float64 {
	least := math.NaN()
	for _, t := range expiries {
		if days := t.Sub(now).Hours() / 24; !(days >= least) {
			least = days
		}
	}
	return least
}
