package policy

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"boxgate/policy/name"
)

// testCluster has services of both families; 10.96.0.99 is an address of the host as well.
func testCluster(t testing.TB) *Cluster {
	t.Helper()
	domain, err := name.Parse("cluster.local")
	if err != nil {
		t.Fatal(err)
	}
	return NewCluster(domain, []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:96::/112")})
}

// compileInCluster compiles a policy for a gateway with testCluster, unless change removes it.
func compileInCluster(t testing.TB, spec Spec, change func(*Options)) *Compiled {
	t.Helper()
	o := Options{Version: 1, Cluster: testCluster(t), Protected: name.NewProtected([]netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")},
		[]netip.Prefix{netip.MustParsePrefix("10.200.0.0/16"), netip.MustParsePrefix("10.96.0.99/32")})}
	if change != nil {
		change(&o)
	}
	c, err := Compile(spec, o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// belowCeiling compiles the policy under a ceiling of the same gateway.
func belowCeiling(t testing.TB, spec Spec) func(*Options) {
	return func(o *Options) {
		c, err := NewCeiling(spec)
		if err != nil {
			t.Fatal(err)
		}
		o.Ceiling = c.WithCluster(o.Cluster)
	}
}

// listingCluster is a policy that lists the services.
func listingCluster(domains ...string) Spec {
	return Spec{Mode: ModeCustom, AllowedDomains: domains, AllowedCIDRs: []string{ClusterServices}}
}

const webName = "web.default.svc.cluster.local"

// Service addresses and names of the cluster are closed unless the policy lists them. Whatever it lists, the host, boxes and other
// protected addresses stay closed, denied entries and the ceiling win, and only TCP is allowed.
func TestClusterIsOpenedByItsEntriesAlone(t *testing.T) {
	all, web := listingCluster(), listing(webName)
	both := listingCluster(webName, "api.example.com")
	without := func(o *Options) { o.Cluster = nil }
	denying := func(s Spec, domain, cidr string) Spec {
		if domain != "" {
			s.DeniedDomains = []string{domain}
		}
		if cidr != "" {
			s.DeniedCIDRs = []string{cidr}
		}
		return s
	}
	yes, byName, byAddr := true, name.ReasonAllowedDomain, name.ReasonAllowedCIDR
	closed, protected := name.ReasonNotAllowed, name.ReasonProtectedRange
	for what, c := range map[string]struct {
		spec   Spec
		change func(*Options)
		name   string
		addr   string
		proto  Protocol
		want   name.Reason
		allow  bool
	}{
		"an address":                            {all, nil, "", "10.96.0.10", TCP, byAddr, yes},
		"an IPv6 address":                       {all, nil, "", "fd00:96::a", TCP, byAddr, yes},
		"an IPv4-mapped address":                {all, nil, "", "::ffff:10.96.0.10", TCP, byAddr, yes},
		"its NAT64 form":                        {all, nil, "", "64:ff9b::10.96.0.10", TCP, protected, false},
		"under a short name":                    {all, nil, "web", "10.96.0.10", TCP, byAddr, yes},
		"by UDP":                                {all, nil, "", "10.96.0.10", UDP, protected, false},
		"by ICMP":                               {all, nil, "", "10.96.0.10", ICMP, protected, false},
		"an address outside":                    {all, nil, "", "10.97.0.10", TCP, protected, false},
		"an address of the host within":         {all, nil, "", "10.96.0.99", TCP, protected, false},
		"a box":                                 {all, nil, "", "10.200.0.5", TCP, protected, false},
		"metadata":                              {all, nil, "", "169.254.169.254", TCP, protected, false},
		"loopback":                              {all, nil, "", "127.0.0.1", TCP, protected, false},
		"the internet":                          {all, nil, "", "93.184.215.14", TCP, closed, false},
		"not listed":                            {listing("api.example.com"), nil, "", "10.96.0.10", TCP, protected, false},
		"allow-all":                             {Spec{Mode: ModeAllowAll}, nil, "", "10.96.0.10", TCP, protected, false},
		"its range":                             {Spec{Mode: ModeCustom, AllowedCIDRs: []string{"10.96.0.0/16"}}, nil, "", "10.96.0.10", TCP, protected, false},
		"names only":                            {web, nil, "", "10.96.0.10", TCP, protected, false},
		"any name":                              {listing("*"), nil, "", "10.96.0.10", TCP, protected, false},
		"without a cluster":                     {all, without, "", "10.96.0.10", TCP, protected, false},
		"denied in part":                        {denying(all, "", "10.96.0.8/29"), nil, "", "10.96.0.10", TCP, name.ReasonDeniedCIDR, false},
		"denied in another part":                {denying(all, "", "10.96.0.0/29"), nil, "", "10.96.0.10", TCP, byAddr, yes},
		"denied, with precedence":               {Spec{Mode: ModeCustom, AllowedCIDRs: []string{ClusterServices}, DeniedCIDRs: []string{"10.0.0.0/8"}, Precedence: PrecedenceSpecific}, nil, "", "10.96.0.10", TCP, name.ReasonDeniedCIDR, false},
		"denied for a time":                     {all.Overruled(ClusterServices), nil, "", "10.96.0.10", TCP, name.ReasonDeniedCIDR, false},
		"denied for a time, with precedence":    {Spec{Mode: ModeCustom, AllowedDomains: []string{webName}, AllowedCIDRs: []string{ClusterServices}, Precedence: PrecedenceSpecific}.Overruled(ClusterServices), nil, webName, "10.96.0.10", TCP, name.ReasonDeniedCIDR, false},
		"denied by its entry":                   {denying(all, "", ClusterServices), nil, "", "10.96.0.10", TCP, name.ReasonDeniedCIDR, false},
		"in an IPv6 range":                      {denying(all, "", "fd00:96::/127"), nil, "", "fd00:96::1", TCP, name.ReasonDeniedCIDR, false},
		"rebound: an allowed name":              {listing("api.example.com"), nil, "api.example.com", "10.96.0.10", TCP, protected, false},
		"rebound: beside a name of the cluster": {listing("api.example.com", webName), nil, "api.example.com", "10.96.0.10", TCP, protected, false},
		"under an open ceiling":                 {all, belowCeiling(t, Spec{Mode: ModeCustom, DeniedDomains: []string{"x.example"}}), "", "10.96.0.10", TCP, name.ReasonNotDenied, yes},
		"under a ceiling with it":               {all, belowCeiling(t, listingCluster("*")), "", "10.96.0.10", TCP, byAddr, yes},
		"under a ceiling of names":              {all, belowCeiling(t, listing("*")), "", "10.96.0.10", TCP, protected, false},
		"under a ceiling of its range":          {all, belowCeiling(t, Spec{Mode: ModeCustom, AllowedCIDRs: []string{"10.0.0.0/8"}}), "", "10.96.0.10", TCP, protected, false},
		"under a ceiling that denies it":        {all, belowCeiling(t, Spec{Mode: ModeCustom, DeniedCIDRs: []string{ClusterServices}}), "", "10.96.0.10", TCP, name.ReasonDeniedCIDR, false},
		"under a ceiling that denies a part":    {all, belowCeiling(t, Spec{Mode: ModeCustom, DeniedCIDRs: []string{"10.96.0.0/24"}}), "", "10.96.0.10", TCP, name.ReasonDeniedCIDR, false},
		"the ceiling's alone":                   {listing("*"), belowCeiling(t, listingCluster("*")), "", "10.96.0.10", TCP, protected, false},
		"audited":                               {listing("api.example.com"), func(o *Options) { o.Audit = true }, "", "10.96.0.10", TCP, protected, false},
		"audited and listed, by UDP":            {all, func(o *Options) { o.Audit = true }, "", "10.96.0.10", UDP, protected, false},
		"audited and listed":                    {all, func(o *Options) { o.Audit = true }, "", "10.96.0.10", TCP, byAddr, yes},
		"without quota":                         {all, func(o *Options) { o.Withheld = Withheld{Reason: name.ReasonQuota} }, "", "10.96.0.10", TCP, name.ReasonQuota, false},
		"without a source address":              {all, func(o *Options) { o.Source = Source{V6: netip.MustParseAddr("2001:db8::7")} }, "", "10.96.0.10", TCP, byAddr, yes},
		"while the host is unknown":             {all, func(o *Options) { o.Protected = nil }, "", "10.96.0.10", TCP, protected, false},

		"a name":                           {web, nil, webName, "", TCP, byName, yes},
		"a name at its address":            {web, nil, webName, "10.96.0.10", TCP, byName, yes},
		"a name by a wildcard below":       {listing("*.svc.cluster.local"), nil, webName, "10.96.0.10", TCP, byName, yes},
		"a name by UDP":                    {web, nil, webName, "10.96.0.10", UDP, protected, false},
		"another name":                     {web, nil, "db.default.svc.cluster.local", "10.96.0.10", TCP, closed, false},
		"another port":                     {listing(webName + ":443"), nil, webName, "10.96.0.10", TCP, closed, false},
		"a name by *":                      {listing("*"), nil, webName, "", TCP, closed, false},
		"a name by *.local":                {listing("*.local"), nil, webName, "10.96.0.10", TCP, closed, false},
		"a name by allow-all":              {Spec{Mode: ModeAllowAll}, nil, webName, "", TCP, closed, false},
		"a name by denied lists":           {Spec{Mode: ModeCustom, DeniedDomains: []string{"x.example"}}, nil, webName, "10.96.0.10", TCP, closed, false},
		"a name by deny-all":               {Spec{Mode: ModeDenyAll}, nil, webName, "", TCP, name.ReasonDenyAll, false},
		"a name at a pod":                  {web, nil, webName, "10.244.0.7", TCP, protected, false},
		"a name on the internet":           {listing(webName, "*"), nil, webName, "93.184.215.14", TCP, protected, false},
		"a name at an allowed CIDR":        {Spec{Mode: ModeCustom, AllowedDomains: []string{webName}, AllowedCIDRs: []string{"93.184.215.0/24"}}, nil, webName, "93.184.215.14", TCP, protected, false},
		"a name at the host":               {web, nil, webName, "10.96.0.99", TCP, protected, false},
		"a name at the metadata":           {both, nil, webName, "169.254.169.254", TCP, protected, false},
		"a name at an exempt address":      {web, nil, webName, "198.51.100.7", TCP, protected, false},
		"a denied name":                    {denying(listing(webName), "*.local", ""), nil, webName, "10.96.0.10", TCP, name.ReasonDeniedDomain, false},
		"a name at a denied address":       {denying(listing(webName), "", "10.96.0.10"), nil, webName, "10.96.0.10", TCP, name.ReasonDeniedCIDR, false},
		"a name, with services denied":     {denying(listing(webName), "", ClusterServices), nil, webName, "10.96.0.10", TCP, name.ReasonDeniedCIDR, false},
		"a name by its address":            {all, nil, webName, "10.96.0.10", TCP, byAddr, yes},
		"a denied name by its address":     {denying(listingCluster(), webName, ""), nil, webName, "10.96.0.10", TCP, name.ReasonDeniedDomain, false},
		"a name before it is looked up":    {all, nil, webName, "", TCP, closed, false},
		"a name under a ceiling of others": {web, belowCeiling(t, listing("*")), webName, "10.96.0.10", TCP, closed, false},
		"a name under a ceiling with it":   {web, belowCeiling(t, listing("*.cluster.local")), webName, "10.96.0.10", TCP, byName, yes},
		"a name under an open ceiling":     {web, belowCeiling(t, Spec{Mode: ModeCustom, DeniedDomains: []string{"x.example"}}), webName, "10.96.0.10", TCP, byName, yes},
		"an audited name":                  {listing("api.example.com"), func(o *Options) { o.Audit = true }, webName, "10.96.0.10", TCP, closed, false},
		"the domain itself":                {listing("*.cluster.local"), nil, "cluster.local", "", TCP, closed, false},
	} {
		r := Request{Stage: StageConn, Port: 5432, Protocol: c.proto}
		if c.name != "" {
			r.Name = mustName(t, c.name)
		}
		if c.addr != "" {
			r.Stage, r.Addr = StageDial, netip.MustParseAddr(c.addr)
		}
		d := compileInCluster(t, c.spec, c.change).Decide(r)
		if d.Reason != c.want || d.Allowed() != c.allow {
			t.Errorf("%s: %s %s (%s), want %s", what, d.Verdict, d.Reason, d.Rule, c.want)
		}
	}
}

// DNS returns service addresses for names in the domain of the cluster only, and looks such names up only for a policy that lists them or
// the services.
func TestClusterNamesAreResolvedForTheirBoxesAlone(t *testing.T) {
	web, service := mustName(t, webName), netip.MustParseAddr("10.96.0.10")
	for what, c := range map[string]struct {
		spec          Spec
		change        func(*Options)
		listed, other bool // the name is allowed, or looked up for its addresses
	}{
		"the name":                {listing(webName), nil, true, false},
		"the services":            {listingCluster(), nil, false, true},
		"both":                    {listingCluster(webName), nil, true, true},
		"strict":                  {Spec{Mode: ModeCustom, AllowedCIDRs: []string{ClusterServices}, DNS: DNSStrict}, nil, false, true},
		"denied services":         {Spec{Mode: ModeCustom, AllowedCIDRs: []string{ClusterServices}, DeniedCIDRs: []string{ClusterServices}}, nil, false, false},
		"no quota":                {listingCluster(), func(o *Options) { o.Withheld = Withheld{Reason: name.ReasonQuota} }, false, false},
		"a ceiling of names":      {listingCluster(), belowCeiling(t, listing("*")), false, false},
		"an open ceiling":         {listingCluster(), belowCeiling(t, Spec{Mode: ModeAllowAll}), false, true},
		"a ceiling of services":   {listingCluster(), belowCeiling(t, listingCluster()), false, true},
		"neither":                 {listing("*"), nil, false, false},
		"allow-all":               {Spec{Mode: ModeAllowAll}, nil, false, false},
		"addresses of its range":  {Spec{Mode: ModeCustom, AllowedCIDRs: []string{"10.96.0.0/16"}}, nil, false, false},
		"addresses, dns: resolve": {Spec{Mode: ModeCustom, AllowedCIDRs: []string{"10.96.0.0/16"}, DNS: DNSResolve}, nil, false, false},
		"another name":            {listing("db.default.svc.cluster.local"), nil, false, false},
	} {
		p := compileInCluster(t, c.spec, c.change)
		if d := p.Decide(Request{Stage: StageDNS, Name: web}); d.Allowed() != c.listed || p.ResolvesOthers(web) != c.other {
			t.Errorf("%s: %s %s, resolved for its addresses: %v", what, d.Verdict, d.Reason, p.ResolvesOthers(web))
		}
		if d := p.Decide(Request{Stage: StageDNS, Name: web, Addr: service}); d.Allowed() != (c.listed || c.other) {
			t.Errorf("%s: an answer of %v: %s %s", what, service, d.Verdict, d.Reason)
		}
		if d := p.Decide(Request{Stage: StageDNS, Name: mustName(t, "rebound.example.com"), Addr: service}); d.Allowed() {
			t.Errorf("%s: an ordinary name is answered with %v", what, service)
		}
	}
	if compileInCluster(t, listingCluster(), nil).ResolvesOthers(mustName(t, "tunnel.example.com")) {
		t.Error("a policy of services alone has other names looked up")
	}
}

// A route by an ordinary name does not reach a service that the name is said to have; one to the address itself does.
func TestClusterServiceOfAnOrdinaryName(t *testing.T) {
	p := compileInCluster(t, listingCluster("rebound.example.com"), nil)
	at := netip.MustParseAddr("10.96.0.10")
	e := Evidence{Opening: OpeningTLS, Dialled: at, Owned: Yes, Ruled: No}
	r := Request{Name: mustName(t, "rebound.example.com"), Addr: netip.MustParseAddr("93.184.215.14"), Port: 443, Protocol: TCP}
	if rt := p.Route(r, e); rt.Action != Refuse || rt.Decision.Reason != name.ReasonProtectedRange {
		t.Errorf("by the name: %v %s (%s)", rt.Action, rt.Decision.Reason, rt.Decision.Rule)
	}
	r.Addr, e.Ruled = at, Unknown
	if rt := p.Route(r, e); rt.Action != Refuse || rt.Needs != NeedRuled {
		t.Errorf("before its rules are known: %v, needs %v", rt.Action, rt.Needs)
	}
	e.Ruled = No
	if rt := p.Route(r, e); rt.Action != Splice || rt.ByName {
		t.Errorf("at the address: %v by name %v %s", rt.Action, rt.ByName, rt.Decision.Reason)
	}
}

// The kernel sends TCP to service addresses to the proxy where the policy lists some, and forwards nothing to them, in any state of the policy.
func TestKernelForwardsNothingToTheCluster(t *testing.T) {
	addrs := []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:96::a"), netip.MustParseAddr("64:ff9b::10.96.0.10")}
	ceilings := map[string]func(*Options){"no ceiling": nil, "an open ceiling": belowCeiling(t, Spec{Mode: ModeAllowAll}), "a ceiling": belowCeiling(t, listingCluster("*"))}
	for _, spec := range []Spec{listing(webName), listingCluster(), listingCluster("*"), {Mode: ModeCustom, AllowedDomains: []string{webName}, AllowedCIDRs: []string{"10.0.0.0/8", "0.0.0.0/0"}},
		{Mode: ModeAllowAll}, {Mode: ModeCustom, DeniedCIDRs: []string{"93.184.215.14"}}, {Mode: ModeDenyAll}, listing("*")} {
		for what, ceiling := range ceilings {
			for _, audit := range []bool{false, true} {
				p := compileInCluster(t, spec, func(o *Options) {
					if o.Audit = audit; ceiling != nil {
						ceiling(o)
					}
				})
				plan := p.Kernel()
				names := slices.ContainsFunc(spec.AllowedDomains, func(d string) bool { return strings.HasSuffix(d, "cluster.local") })
				lists := names || slices.Contains(spec.AllowedCIDRs, ClusterServices)
				if p.ReachesCluster() != lists {
					t.Errorf("%+v, %s: steers %v", spec, what, plan.Cluster)
				}
				for _, plan := range []KernelPlan{plan, plan.WithoutForwarding()} {
					for i, a := range addrs {
						for _, protocol := range []Protocol{TCP, UDP, ICMP} {
							want := Refused
							if lists && protocol == TCP && i < 2 {
								want = Steered
							}
							if got := plan.Fate(a, 5432, protocol); got != want {
								t.Errorf("%+v, %s, audited %v: %s to %v: %v, want %v", spec, what, audit, protocol, a, got, want)
							}
							if p.Forwards(a, 5432, protocol) {
								t.Errorf("%+v, %s: %s to %v counts as forwarded", spec, what, protocol, a)
							}
						}
					}
				}
			}
		}
	}
	spent := compileInCluster(t, listingCluster(), func(o *Options) { o.Withheld = Withheld{Reason: name.ReasonQuota} })
	if spent.ReachesCluster() {
		t.Error("without quota the kernel steers")
	}
}

// Connections to the cluster use neither the upstream proxy nor the source address of the policy. Ordinary names do, whatever address the
// box has connected to.
func TestClusterIsReachedDirectly(t *testing.T) {
	spec := listingCluster(webName, "api.example.com")
	spec.UpstreamProxy = &UpstreamSpec{URL: "http://proxy.example.com:3128"}
	p := compileInCluster(t, spec, nil)
	service, e := netip.MustParseAddr("10.96.0.10"), Evidence{Opening: OpeningTLS, Ruled: No}
	for host, direct := range map[string]bool{webName: true, "": true, "api.example.com": false} {
		r := Request{Addr: service, Port: 443, Protocol: TCP}
		e := e
		if host != "" {
			r.Name = mustName(t, host)
		}
		if host == "api.example.com" {
			r.Addr = netip.MustParseAddr("93.184.215.14")
		}
		rt := p.Route(r, e)
		if rt.Action != Splice || (rt.Upstream == nil) != direct {
			t.Errorf("%q: %v by %v (%s)", host, rt.Action, rt.Upstream.URL(), rt.Decision.Reason)
		}
	}
	if p.ResolvedThere(mustName(t, webName)) {
		t.Error("the upstream proxy resolves a name of the cluster")
	}
	r := Request{Stage: StageConn, Name: mustName(t, "api.example.com"), Addr: service, Port: 443, Protocol: TCP}
	if p.leadsToCluster(r, true) || !p.leadsToCluster(r, false) {
		t.Error("the claimed address of an ordinary name makes its connection direct")
	}
}

// The entry has no effect without a cluster, and a warning.
func TestClusterWarnings(t *testing.T) {
	for what, c := range map[string]struct {
		change func(*Options)
		want   int
	}{"with": {nil, 0}, "without": {func(o *Options) { o.Cluster = nil }, 1}, "under a ceiling of others with": {belowCeiling(t, listing("*")), 1},
		"under an open ceiling with": {belowCeiling(t, Spec{Mode: ModeCustom, DeniedDomains: []string{"x.example"}}), 0}} {
		p := compileInCluster(t, listingCluster(), c.change)
		if got := p.Warnings(); len(got) != c.want {
			t.Errorf("%s a cluster: %v", what, got)
		}
	}
	if _, err := Compile(Spec{Mode: ModeCustom, AllowedDomains: []string{ClusterServices}}, Options{}); err == nil {
		t.Error("the entry is accepted among domains")
	}
}
