package solo

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
)

// TestWhatIsSaidOfARefusal: SSH is treated as TCP whether the destination has a known name or not, and UDP is not
// supported.
func TestWhatIsSaidOfARefusal(t *testing.T) {
	t.Parallel()
	for want, e := range map[string]audit.Event{
		`refused github.com:22 (deny_all): to allow it, put "github.com:22" into allowed_domains`:                                                                {Name: "github.com", Port: 22, Protocol: policy.TCP},
		`refused an unknown destination:22 (deny_all): no name is known for it; to allow it, put its name with the port into allowed_domains, such as "HOST:22"`: {Port: 22, Protocol: policy.TCP},
		`refused github.com:123/udp (deny_all): gateway run supports only TCP and DNS`:                                                                           {Name: "github.com", Port: 123, Protocol: policy.UDP},
		`refused 192.0.2.1:22 (deny_all): to allow it, put "192.0.2.1" into allowed_cidrs`:                                                                       {Addr: netip.MustParseAddr("192.0.2.1"), Port: 22, Protocol: policy.TCP},
	} {
		var out bytes.Buffer
		e.Stage, e.Verdict, e.Reason = policy.StageConn, policy.Deny, name.ReasonDenyAll
		r := newRecord(Options{Errout: &out})
		r.record(e)
		if !strings.Contains(out.String(), want) {
			t.Errorf("want %s\ngot %s", want, &out)
		}
		if r.Summarize(); !strings.Contains(out.String(), "(deny_all, 1 time)") {
			t.Error(&out)
		}
	}
}
