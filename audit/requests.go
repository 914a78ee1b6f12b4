package audit

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"boxgate/policy"
)

// requests counts requests to public URLs by class of status and kind of credential.
type requests struct {
	vec      *prometheus.CounterVec
	counters map[requestLabels]func() prometheus.Counter // immutable
}

type requestLabels struct {
	class      int // hundreds of the status; 0: no answer
	credential Credential
}

// credentials are the kinds that have their own series.
var credentials = []Credential{"", CredentialNone, CredentialBearer, CredentialBasic, CredentialSession, CredentialAccount, CredentialLink}

func newRequests() *requests {
	r := &requests{counters: map[requestLabels]func() prometheus.Counter{}, vec: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "boxgate_url_requests_total", Help: "Requests to public URLs that have ended, by class of status and kind of credential (refused: not admitted).",
	}, []string{"status", "credential"})}
	for class, status := range []string{"none", "1xx", "2xx", "3xx", "4xx", "5xx"} {
		for _, c := range credentials {
			name := string(c)
			if c == "" {
				name = "refused"
			}
			r.counters[requestLabels{class, c}] = sync.OnceValue(func() prometheus.Counter { return r.vec.WithLabelValues(status, name) })
		}
	}
	return r
}

// observe counts an event if it ends a request.
func (r *requests) observe(e *Event) {
	if e.Stage != policy.StageURL || e.Phase == PhaseOpen || e.Phase == PhaseOngoing {
		return
	}
	class := e.Status / 100
	if class < 1 || class > 5 {
		class = 0
	}
	if counter := r.counters[requestLabels{class, e.Credential}]; counter != nil {
		counter().Add(float64(max(e.Count, 1)))
	}
}
