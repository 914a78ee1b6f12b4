package origin

import (
	"net"
	"testing"

	"github.com/miekg/dns"
)

// recorder keeps the answer of a name server.
type recorder struct {
	dns.ResponseWriter
	answer *dns.Msg
}

func (r *recorder) WriteMsg(m *dns.Msg) error {
	r.answer = m
	return nil
}

func (*recorder) RemoteAddr() net.Addr { return &net.UDPAddr{} }

func TestNamesLeadToTheirServers(t *testing.T) {
	for name, want := range map[string]string{
		"up.bench.test.": Web, "n0001.bench.test.": Web, "n1.fresh.bench.test.": Web, "hello.bench.test.": Hello, "Sink.Bench.test.": Sink, "grpc.bench.test.": GRPC, "x.denied.test.": "",
	} {
		var r recorder
		answer(&r, new(dns.Msg).SetQuestion(name, dns.TypeA))
		got := ""
		if len(r.answer.Answer) == 1 {
			got = r.answer.Answer[0].(*dns.A).A.String()
		}
		if got != want || (r.answer.Rcode == dns.RcodeNameError) != (want == "") {
			t.Errorf("%s leads to %q with %s, want %q", name, got, dns.RcodeToString[r.answer.Rcode], want)
		}
	}
}
