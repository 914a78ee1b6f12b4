package origin_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"boxgate/policy/name"
	"boxgate/proxy"
	"boxgate/proxy/origin"
	"boxgate/proxy/problem"
	"boxgate/proxy/proxytest"
)

func TestUpstreamIsVerified(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("*.example"))
	good := r.TLSServer("good.example")
	for name, at := range map[string]netip.AddrPort{"good.example": good, "other.example": good} {
		r.Names.Set(name, at.Addr())
	}
	d := func(name string) error {
		c, err := r.Core.Origins.DialTLS(context.Background(), r.Box, r.Target(name), nil)
		if err == nil {
			if got := origin.Start(t, c); got != nil {
				t.Errorf("%d bytes of the handshake are kept", len(got))
			}
			c.Close()
		}
		return err
	}
	if err := d("good.example"); err != nil {
		t.Error(err)
	}
	var up *problem.Upstream
	if err := d("other.example"); !errors.As(err, &up) || up.Reason != name.ReasonUpstreamTLS {
		t.Errorf("a certificate for another name: %v", err)
	}
	r.With(func(c *proxy.Config) { c.Roots = r.BoxCA.Pool() })
	if err := d("good.example"); !errors.As(err, &up) || up.Reason != name.ReasonUpstreamTLS {
		t.Errorf("a certificate of an authority that is not trusted: %v", err)
	}
}
