package origin

import (
	"testing"

	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/route"
)

// TestKeysOfTargets: connections by one upstream proxy are for no request that goes by another, directly, or with other
// credentials.
func TestKeysOfTargets(t *testing.T) {
	t.Parallel()
	seen := map[key]string{}
	for _, url := range []string{"", "http://a.test:3128", "https://a.test:3128", "http://b.test:3128", "http://a.test:3129", "socks5://a.test:3128"} {
		for _, password := range []string{"", "one", "two"} {
			if url == "" && password != "" {
				continue
			}
			c, err := policy.Compile(spec(url), policy.Options{Version: 1, Headers: rules(t, password), Protected: name.NewProtected(nil, nil)})
			if err != nil {
				t.Fatal(err)
			}
			host, _ := name.Parse("server.test")
			rt, _ := route.Now(c, policy.Request{Name: host, Port: 443, Protocol: policy.TCP}, policy.Evidence{Opening: policy.OpeningSecure})
			k := To(rt, true).key()
			if rt.Action != policy.Forward || rt.Upstream.URL() != url {
				t.Fatalf("%s: %+v", url, rt)
			}
			if other, twice := seen[k]; twice && (password == "" || url == "http://a.test:3128") {
				t.Errorf("%s with %q shares its connections with %s", url, password, other)
			}
			seen[k] = url + " " + password
		}
	}
}

func spec(url string) policy.Spec {
	s := policy.Spec{Mode: policy.ModeAllowAll}
	if url != "" {
		s.UpstreamProxy = &policy.UpstreamSpec{URL: url}
	}
	return s
}

// rules have a login for one of the proxies.
func rules(t *testing.T, password string) []policy.HeaderRule {
	t.Helper()
	if password == "" {
		return nil
	}
	out, err := policy.ParseHeaderRules([]byte(`{"a.test:3128": {"proxy": {"scheme": "http", "username": "u", "password": "`+password+`"}}}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
