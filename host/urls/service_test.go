package urls

import (
	"slices"
	"testing"

	"go.uber.org/zap"

	"boxgate/config"
	"boxgate/policy/name"
	"boxgate/store"
)

// Names that belong to the gateway cannot be custom domains, and custom domains from an earlier configuration that now
// belong to the gateway are not served.
func TestDomainsOfTheGateway(t *testing.T) {
	t.Parallel()
	u := &Service{config: Config{Ingress: config.Ingress{Domain: "new.example.org"}, Log: zap.NewNop(), Table: NewTable(config.Ingress{Domain: "new.example.org"}, "login.example.org")}}
	for host, refused := range map[string]bool{
		"victim-80.new.example.org": true, "new.example.org": true, "login.example.org": true, "app.example.org": false, "a.login.example.org": false,
	} {
		n, err := name.Parse(host)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := u.ownDomains([]name.Name{n}); (err != nil) != refused {
			t.Errorf("%s: %v", host, err)
		}
	}
	hosts := u.hostsOf(store.URL{Box: "evil", Port: 80, Hostnames: []string{"app.example.org", "victim-80.new.example.org", "login.example.org"}})
	if want := []string{"evil-80.new.example.org", "app.example.org"}; !slices.Equal(hosts, want) {
		t.Errorf("%v, want %v", hosts, want)
	}
}
