package lifecycle

import (
	"net/http"
	"testing"

	"boxgate/api"
	"boxgate/config"
)

// An upgrade keeps the source address of a box, and its open connections. A later change cuts connections in the
// replaced process too. A reload that removes the address from the list leaves the box without a way out.
func TestUpgradesKeepSourceAddresses(t *testing.T) {
	t.Parallel()
	list := []string{"192.0.2.241", "192.0.2.242"}
	u := newUpgrading(t, func(c *config.Config) { c.Network.Sources = list })
	via, _ := u.Net.GatewayAddrs()
	for _, a := range list {
		if out, err := u.Net.Internet().Run(t.Context(), "ip", "route", "add", a+"/32", "via", via.String(), "dev", "net0"); err != nil {
			t.Fatal(err, out)
		}
		if out, err := u.Net.Gateway().Run(t.Context(), "ip", "addr", "add", a+"/32", "dev", "up0"); err != nil {
			t.Fatal(err, out)
		}
	}
	g := u.guest()
	set := func(a string) {
		t.Helper()
		body := map[string]any{"source_addresses": []string{a}}
		if err := u.Client.Do(t.Context(), http.MethodPut, api.BoxPath(g.id, "config", "source-addresses"), body, nil); err != nil {
			t.Fatal(err)
		}
	}
	leaves := func(when, from string) {
		t.Helper()
		u.Net.Forget()
		if !g.reaches() {
			t.Errorf("%s: the box does not reach what it may", when)
		}
		for _, r := range u.Net.Received("api.example.com") {
			if r.Remote.Addr().Unmap().String() != from {
				t.Errorf("%s: the box was seen at %v, want %s", when, r.Remote, from)
			}
		}
	}
	set(list[0])
	size, ended := u.stream(g, "https://www.example.com/sse")
	u.mustReplace("upgrade")
	u.goesOn("the stream", size)
	leaves("after an upgrade", list[0])
	set(list[1])
	u.Until("what the replaced process has is cut", func() bool { return len(ended) == 1 })
	leaves("after a change", list[1])

	_, ended = u.stream(g, "https://www.example.com/sse")
	u.reconfigure(func(c *config.Config) { c.Network.Sources = list[:1] })
	u.mustReplace("reload")
	u.Until("what left from an address that is not listed any more is cut", func() bool { return len(ended) == 1 })
	u.Net.Forget()
	if g.reaches() || len(u.Net.Received("api.example.com")) > 0 {
		t.Error("the box leaves from an address that is not listed any more, or from another")
	}
	set(list[0])
	leaves("with an address that is listed", list[0])
}
