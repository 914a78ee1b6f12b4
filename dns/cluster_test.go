package dns

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	mdns "github.com/miekg/dns"

	"boxgate/policy"
	"boxgate/policy/name"
)

// serveZone serves a zone by UDP and returns the server's address.
func serveZone(t *testing.T, z *zone) string {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &mdns.Server{PacketConn: conn, Handler: mdns.HandlerFunc(func(w mdns.ResponseWriter, q *mdns.Msg) {
		m, _ := z.exchange(t.Context(), q.Question[0].Name, q.Question[0].Qtype)
		m.Id, m.Question = q.Id, q.Question
		_ = w.WriteMsg(m)
	})}
	started := make(chan struct{})
	server.NotifyStartedFunc = func() { close(started) }
	go func() { _ = server.ActivateAndServe() }()
	<-started
	t.Cleanup(func() { _ = server.Shutdown() })
	return conn.LocalAddr().String()
}

const (
	webName   = "web.default.svc.cluster.local"
	serviceV4 = "10.96.0.10"
	serviceV6 = "fd00:96::a"
)

// newClusterBench makes a server with a cluster. Its zone answers for all other names.
func newClusterBench(t *testing.T, spec policy.Spec, cluster, others *zone) *bench {
	t.Helper()
	b := &bench{box: newBox(t, "box1", policy.Spec{Mode: policy.ModeDenyAll}), zone: others, events: &events{}}
	domain := mustName(t, "cluster.local")
	p, err := policy.Compile(spec, policy.Options{Version: 1, Protected: name.NewProtected(nil, nil),
		Cluster: policy.NewCluster(domain, []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:96::/112")})})
	if err != nil {
		t.Fatal(err)
	}
	b.box.Policy.Store(p)
	c := testConfig(t, b.box, b.events)
	c.Upstreams = []string{serveZone(t, others)}
	c.Cluster = &Zone{Domain: domain, Upstreams: []string{serveZone(t, cluster)}}
	if b.Server, err = New(c); err != nil {
		t.Fatal(err)
	}
	return b
}

// Names of the cluster are asked for at its servers alone, for boxes whose policies list them or its services alone, and all others are never
// asked for there. Answers have service addresses only, and only names of the cluster have these.
func TestClusterHasServersOfItsOwn(t *testing.T) {
	t.Parallel()
	services := policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"*.example.com"}, AllowedCIDRs: []string{policy.ClusterServices}}
	for what, c := range map[string]struct {
		spec  policy.Spec
		asked string
		qtype uint16
		want  []string // addresses; empty: none but the sink's
		at    string   // the servers that are asked: cluster, others or none
	}{
		"a listed name":                  {domains(webName), webName, mdns.TypeA, []string{serviceV4}, "cluster"},
		"in another case":                {domains(webName), "WEB.Default.svc.CLUSTER.local", mdns.TypeA, []string{serviceV4}, "cluster"},
		"IPv6":                           {domains(webName), webName, mdns.TypeAAAA, []string{serviceV6}, "cluster"},
		"a name of the services":         {services, webName, mdns.TypeA, []string{serviceV4}, "cluster"},
		"a name that does not exist":     {services, "gone.default.svc.cluster.local", mdns.TypeA, nil, "cluster"},
		"a pod":                          {services, "pod.default.svc.cluster.local", mdns.TypeA, nil, "cluster"},
		"a pod that is listed":           {domains("pod.default.svc.cluster.local"), "pod.default.svc.cluster.local", mdns.TypeA, nil, "cluster"},
		"a listed name on the internet":  {domains("*.svc.cluster.local", "*"), "out.default.svc.cluster.local", mdns.TypeA, nil, "cluster"},
		"a text of an unlisted name":     {services, webName, mdns.TypeTXT, nil, ""},
		"not listed":                     {domains("*"), webName, mdns.TypeA, nil, ""},
		"allow-all":                      {policy.Spec{Mode: policy.ModeAllowAll}, webName, mdns.TypeA, nil, ""},
		"dns: resolve":                   {policy.Spec{Mode: policy.ModeCustom, AllowedCIDRs: []string{"10.0.0.0/8", goodV4}}, webName, mdns.TypeA, nil, ""},
		"rebinding":                      {services, "rebound.example.com", mdns.TypeA, nil, "others"},
		"rebinding by an alias":          {services, "alias.example.com", mdns.TypeA, nil, "others"},
		"rebinding by a broken alias":    {domains("*.example.com"), "broken.example.com", mdns.TypeA, nil, "others"},
		"an ordinary name":               {services, "good.example.com", mdns.TypeA, []string{goodV4}, "others"},
		"an ordinary name like the zone": {domains("*"), "notcluster.local", mdns.TypeA, []string{goodV4}, "others"},
	} {
		cluster := newZone(t, webName+". 60 IN A "+serviceV4, webName+". 60 IN AAAA "+serviceV6, "pod.default.svc.cluster.local. 60 IN A 10.244.0.7",
			"out.default.svc.cluster.local. 60 IN A "+goodV4)
		others := newZone(t, "rebound.example.com. 60 IN A "+serviceV4, "alias.example.com. 60 IN CNAME "+webName+".", webName+". 60 IN A "+serviceV4,
			"broken.example.com. 60 IN CNAME "+webName+".", "good.example.com. 60 IN A "+goodV4, "notcluster.local. 60 IN A "+goodV4)
		others.full = what == "rebinding by an alias"
		b := newClusterBench(t, c.spec, cluster, others)
		for range 2 { // the second answer is from the cache
			got := slices.DeleteFunc(addresses(b.ask(t, c.asked, c.qtype)), func(a string) bool { return a == sinkV4 || a == sinkV6 })
			if !slices.Equal(got, c.want) {
				t.Errorf("%s: %v, want %v", what, got, c.want)
			}
		}
		if c.qtype != mdns.TypeTXT {
			at, _ := b.Lookup(t.Context(), b.box, mustName(t, strings.ToLower(c.asked)))
			if c.at == "" && len(at) > 0 {
				t.Errorf("%s: a lookup finds %v", what, at)
			}
		}
		if got := len(cluster.questions()) > 0; got != (c.at == "cluster") {
			t.Errorf("%s: the cluster's servers were asked %q", what, cluster.questions())
		}
		if got := len(others.questions()) > 0; got != (c.at == "others") || slices.ContainsFunc(others.questions(), func(q string) bool { return strings.Contains(q, ".cluster.local") }) {
			t.Errorf("%s: other servers were asked %q", what, others.questions())
		}
		if text, err := b.LookupText(t.Context(), mustName(t, webName)); err == nil {
			t.Errorf("%s: the gateway's own lookup finds %v", what, text)
		}
	}
}

// A name that was looked up for one box is not answered to another, nor to the same box after its entry has gone.
func TestClusterAnswersAreJudgedForEachBox(t *testing.T) {
	t.Parallel()
	cluster := newZone(t, webName+". 60 IN A "+serviceV4)
	b := newClusterBench(t, domains(webName), cluster, newZone(t))
	wantAddresses(t, b.ask(t, webName, mdns.TypeA), serviceV4)
	b.box.Policy.Store(compile(t, domains("api.example.com"), 2))
	asked := len(cluster.questions())
	wantBlocked(t, b.ask(t, webName, mdns.TypeA), sinkV4)
	if got := len(cluster.questions()); got != asked {
		t.Error("the cluster's servers were asked again")
	}
}
