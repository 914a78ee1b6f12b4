package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"boxgate/kube"
)

// errNoServer is the error of a gateway that is configured to follow a cluster but does not run in one.
var errNoServer = errors.New("kubernetes.server is not set, and the environment has no KUBERNETES_SERVICE_HOST; set it to the URL of the API server")

// openKubernetes makes the controller of BoxgatePolicies, if kubernetes.policies is set. The API server need not answer: the policies of
// an earlier run are in the store.
func (o *opening) openKubernetes(context.Context) error {
	p, c := o.parts, o.parts.cfg.Kubernetes
	if !c.Policies {
		return nil
	}
	server := kube.Server{URL: c.URL(os.Getenv), TokenFile: c.TokenFile, CAFile: c.CAFile}
	if server.URL == "" {
		return errNoServer
	}
	node, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("the name of this node: %w", err)
	}
	o.resources, err = kube.New(kube.Config{Server: server, Node: node, Policies: o.policies, Log: p.log.Named("kubernetes")})
	if err != nil {
		return err
	}
	return p.metrics.Register(listedMetric(o.resources))
}

// listedMetric shows how current the policies of resources are.
func listedMetric(c *kube.Controller) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "boxgate_kubernetes_listed_timestamp_seconds",
		Help: "When all BoxgatePolicies were last read from the API server; 0: not since the start.",
	}, func() float64 {
		at := c.Listed()
		if at.IsZero() {
			return 0
		}
		return float64(at.UnixNano()) / float64(time.Second)
	})
}
