package dns

import (
	"strings"
	"testing"

	mdns "github.com/miekg/dns"
)

func TestHTTPSRecordsLoseWhatLeadsAroundTheGateway(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`1 . alpn="h3,h2" ipv4hint="127.0.0.1,1.2.3.4" ech="AEX+DQ==" ipv6hint="::1"`: `1 . alpn="h2"`,
		`1 . alpn="h3-29,h3,http/1.1" port="8443"`:                                    `1 . alpn="http/1.1" port="8443"`,
		`1 . alpn="h3"`:                                                  `1 .`, // the default protocol remains
		`1 . alpn="h3" no-default-alpn=""`:                               ``,
		`1 . alpn="h2" no-default-alpn=""`:                               `1 . alpn="h2" no-default-alpn=""`,
		`1 . mandatory="alpn,ech" alpn="h2" ech="AEX+DQ=="`:              `1 . mandatory="alpn" alpn="h2"`,
		`1 . mandatory="ech,ipv4hint" ipv4hint="1.2.3.4" ech="AEX+DQ=="`: `1 .`,
		`0 cdn.example.net.`:                                             `0 cdn.example.net.`,
		`1 . alpn="h2" key65400="x"`:                                     `1 . alpn="h2" key65400="x"`,
	} {
		for _, typ := range []string{"HTTPS", "SVCB"} {
			b := newBench(t, domains("w.example.com"), newZone(t, "w.example.com. 60 IN "+typ+" "+in))
			m := b.ask(t, "w.example.com", mdns.StringToType[typ])
			got := ""
			if len(m.Answer) > 0 {
				_, got, _ = strings.Cut(m.Answer[0].String(), typ+"\t")
			}
			if strings.TrimSpace(got) != want {
				t.Errorf("%s %s\n got %q\nwant %q", typ, in, got, want)
			}
		}
	}
}
