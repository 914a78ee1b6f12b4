package policy

import (
	"net/netip"
	"testing"

	"boxgate/policy/name"
)

// fixedServices has db on 127.0.0.1 and web in a box.
type fixedServices map[string]netip.AddrPort

func (f fixedServices) Target(n name.Name) (netip.AddrPort, bool) {
	at, known := f[n.Service()]
	return at, known
}

var testServices = fixedServices{"db": netip.MustParseAddrPort("127.0.0.1:5432"), "web": netip.MustParseAddrPort("10.200.0.9:8000")}

func service(label string) name.Name {
	n, err := name.ParseService(label)
	if err != nil {
		panic(err)
	}
	return n
}

func withServices(t *testing.T, spec Spec, change func(*Options)) *Compiled {
	t.Helper()
	o := Options{Version: 1, Protected: name.NewProtected(nil, []netip.Prefix{netip.MustParsePrefix("10.200.0.0/16")}), Services: testServices}
	if change != nil {
		change(&o)
	}
	c, err := Compile(spec, o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func listing(allowed ...string) Spec { return Spec{Mode: ModeCustom, AllowedDomains: allowed} }

// A service is closed unless the policy lists it alone, and then open at its address and port only.
func TestServiceIsOpenedByItsEntryAlone(t *testing.T) {
	to := func(n name.Name, addr string, port uint16, p Protocol) Request {
		r := Request{Stage: StageConn, Name: n, Port: port, Protocol: p}
		if addr != "" {
			r.Stage, r.Addr = StageDial, netip.MustParseAddr(addr)
		}
		return r
	}
	db := to(service("db"), "127.0.0.1", 5432, TCP)
	ceiling := func(spec Spec) func(*Options) {
		return func(o *Options) {
			c, err := NewCeiling(spec)
			if err != nil {
				t.Fatal(err)
			}
			o.Ceiling = c
		}
	}
	for what, c := range map[string]struct {
		spec   Spec
		change func(*Options)
		ask    Request
		want   name.Reason
	}{
		"listed":                        {listing("service:db"), nil, db, name.ReasonAllowedDomain},
		"listed by its host name":       {listing("db.service.boxgate.internal"), nil, db, name.ReasonAllowedDomain},
		"before it is dialled":          {listing("service:db"), nil, to(service("db"), "", 5432, TCP), name.ReasonAllowedDomain},
		"allow-all":                     {Spec{Mode: ModeAllowAll}, nil, db, name.ReasonNotAllowed},
		"any name":                      {listing("*"), nil, db, name.ReasonNotAllowed},
		"a wildcard":                    {listing("*.service.boxgate.internal", "*.internal"), nil, db, name.ReasonNotAllowed},
		"denied lists":                  {Spec{Mode: ModeCustom, DeniedDomains: []string{"x.example"}}, nil, db, name.ReasonNotAllowed},
		"deny-all":                      {Spec{Mode: ModeDenyAll}, nil, db, name.ReasonDenyAll},
		"another service":               {listing("service:web"), nil, db, name.ReasonNotAllowed},
		"its address allowed":           {Spec{Mode: ModeCustom, AllowedCIDRs: []string{"127.0.0.0/8"}}, nil, db, name.ReasonNotAllowed},
		"denied by name":                {Spec{Mode: ModeCustom, AllowedDomains: []string{"service:db"}, DeniedDomains: []string{"*.boxgate.internal"}}, nil, db, name.ReasonDeniedDomain},
		"denied by itself":              {Spec{Mode: ModeCustom, AllowedDomains: []string{"service:db"}, DeniedDomains: []string{"service:db"}}, nil, db, name.ReasonDeniedDomain},
		"denied by address":             {Spec{Mode: ModeCustom, AllowedDomains: []string{"service:db"}, DeniedCIDRs: []string{"127.0.0.1"}}, nil, db, name.ReasonDeniedCIDR},
		"another port":                  {listing("service:db"), nil, to(service("db"), "127.0.0.1", 22, TCP), name.ReasonNotAllowed},
		"another address":               {listing("service:db"), nil, to(service("db"), "169.254.169.254", 5432, TCP), name.ReasonProtectedRange},
		"a public address":              {listing("service:db", "*"), nil, to(service("db"), "93.184.215.14", 5432, TCP), name.ReasonProtectedRange},
		"its address by another name":   {listing("service:db", "x.example"), nil, to(mustName(t, "x.example"), "127.0.0.1", 5432, TCP), name.ReasonProtectedRange},
		"its address alone":             {listing("service:db", "*"), nil, to(name.Name{}, "127.0.0.1", 5432, TCP), name.ReasonProtectedRange},
		"UDP":                           {listing("service:db"), nil, to(service("db"), "127.0.0.1", 5432, UDP), name.ReasonNotAllowed},
		"no such service":               {listing("service:gone"), nil, to(service("gone"), "", 80, TCP), name.ReasonNotAllowed},
		"below a service":               {listing("service:db", "*.db.service.boxgate.internal"), nil, to(mustName(t, "a.db.service.boxgate.internal"), "", 5432, TCP), name.ReasonNotAllowed},
		"the zone":                      {listing("service.boxgate.internal"), nil, to(mustName(t, "service.boxgate.internal"), "", 5432, TCP), name.ReasonNotAllowed},
		"a box":                         {listing("service:web"), nil, to(service("web"), "10.200.0.9", 8000, TCP), name.ReasonAllowedDomain},
		"another box":                   {listing("service:web"), nil, to(service("web"), "10.200.0.10", 8000, TCP), name.ReasonProtectedRange},
		"without services":              {listing("service:db"), func(o *Options) { o.Services = nil }, db, name.ReasonNotAllowed},
		"under a ceiling with it":       {listing("service:db"), ceiling(listing("service:db")), db, name.ReasonAllowedDomain},
		"under a ceiling of others":     {listing("service:db"), ceiling(listing("*")), db, name.ReasonNotAllowed},
		"under an open ceiling":         {listing("service:db"), ceiling(Spec{Mode: ModeCustom, DeniedDomains: []string{"x.example"}}), db, name.ReasonAllowedDomain},
		"under a ceiling that denies":   {listing("service:db"), ceiling(Spec{Mode: ModeCustom, DeniedCIDRs: []string{"127.0.0.0/8"}}), db, name.ReasonDeniedCIDR},
		"audited":                       {listing("x.example"), func(o *Options) { o.Audit = true }, db, name.ReasonNotAllowed},
		"audited, at the metadata":      {listing("service:db"), func(o *Options) { o.Audit = true }, to(service("db"), "169.254.169.254", 5432, TCP), name.ReasonProtectedRange},
		"audited and listed":            {listing("service:db"), func(o *Options) { o.Audit = true }, db, name.ReasonAllowedDomain},
		"without a source address":      {listing("service:db"), func(o *Options) { o.Source = Source{V6: netip.MustParseAddr("2001:db8::7")} }, db, name.ReasonAllowedDomain},
		"of a box without quota":        {listing("service:db"), func(o *Options) { o.Withheld = Withheld{Reason: name.ReasonQuota} }, db, name.ReasonQuota},
		"a host called service, by TLS": {listing("service:443"), nil, to(mustName(t, "service"), "", 443, TCP), name.ReasonAllowedDomain},
	} {
		d := withServices(t, c.spec, c.change).Decide(c.ask)
		if d.Reason != c.want || d.Allowed() != (c.want == name.ReasonAllowedDomain) {
			t.Errorf("%s: %s %s (%s), want %s", what, d.Verdict, d.Reason, d.Rule, c.want)
		}
	}
}

// A policy that lists services resolves none of their names upstream, and steers nothing more in the kernel.
func TestServicesChangeNothingElse(t *testing.T) {
	with, without := withServices(t, listing("x.example:8443", "service:db"), nil), withServices(t, listing("x.example:8443"), nil)
	if a, b := with.Kernel(), without.Kernel(); len(a.SteerOther.Ports) != len(b.SteerOther.Ports) || a.SteerOther.All || len(a.RejectUDP.Ports) != len(b.RejectUDP.Ports) {
		t.Errorf("the kernel's plan: %+v, without the service %+v", a, b)
	}
	if got := with.ServicesOn(5432); len(got) != 1 || got[0] != service("db") {
		t.Errorf("services on the port of db: %v", got)
	}
	if got := with.ServicesOn(8000); len(got) != 0 {
		t.Errorf("services on another port: %v", got)
	}
	if w := withServices(t, listing("service:gone", "*.service.boxgate.internal"), nil).Warnings(); len(w) != 2 {
		t.Errorf("entries without effect: %v", w)
	}
	addresses := Spec{Mode: ModeCustom, AllowedCIDRs: []string{"93.184.215.0/24"}}
	for what, change := range map[string]func(*Options){"alone": nil, "under a ceiling": func(o *Options) { o.Ceiling, _ = NewCeiling(addresses) }} {
		for _, of := range []string{"db", "gone"} {
			if c := withServices(t, addresses, change); c.ResolvesOthers(service(of)) || !c.ResolvesOthers(mustName(t, "x.example")) {
				t.Errorf("%s, allowed addresses: %s is resolved upstream, or no name is", what, of)
			}
		}
	}
	proxied := listing("service:db")
	proxied.UpstreamProxy = &UpstreamSpec{URL: "http://proxy.example:3128", ResolveThere: []string{"*"}}
	c := withServices(t, proxied, nil)
	rt := c.Route(Request{Stage: StageConn, Name: service("db"), Port: 5432, Protocol: TCP}, Evidence{Opening: OpeningOther, Bound: service("db")})
	if rt.Action != Splice || rt.Upstream != nil || rt.There || c.ResolvedThere(service("db")) {
		t.Errorf("a service behind an upstream proxy: %+v", rt)
	}
}

func TestServiceNames(t *testing.T) {
	for label, good := range map[string]bool{
		"db": true, "a-1": true, "": false, "1db": false, "Db": false, "db-": false, "a.b": false, "a_b": false, "xn--a": false, "-a": false, "db:1": false,
	} {
		p, err := name.ParsePattern("service:" + label)
		if ok := err == nil && p.IsService(); ok != good {
			t.Errorf("service:%s: %v %v, want %v", label, p, err, good)
		}
	}
}
