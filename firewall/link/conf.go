package link

import (
	"encoding/binary"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"boxgate/firewall/namespace"
)

// The kernel includes the sysctls of an interface in messages about it, in arrays that grow with new versions:
// IFLA_INET_CONF and IFLA_INET6_CONF in IFLA_AF_SPEC. One dump of all interfaces replaces reading a dozen files per box at
// startup.
const (
	inetConf  = 1 // IFLA_INET_CONF
	inet6Conf = 2 // IFLA_INET6_CONF
)

// confIndex is the index of a sysctl in its array: IPV4_DEVCONF_* of linux/ip.h less one, DEVCONF_* of linux/ipv6.h.
var confIndex = map[string]int{
	"ipv4/forwarding": 0, "ipv4/proxy_arp": 2, "ipv4/accept_redirects": 3, "ipv4/send_redirects": 5, "ipv4/rp_filter": 7, "ipv4/arp_ignore": 18,
	"ipv4/accept_local": 22, "ipv4/route_localnet": 25, "ipv4/drop_unicast_in_l2_multicast": 29,
	"ipv6/forwarding": 0, "ipv6/accept_ra": 3, "ipv6/accept_redirects": 4, "ipv6/disable_ipv6": 26, "ipv6/drop_unicast_in_l2_multicast": 40,
	"ipv6/addr_gen_mode": 47,
}

// confs are the sysctls of an interface, by IP version.
type confs map[string][]byte

// confsNamed returns the sysctls of one interface in the namespace of the calling thread; nil if they cannot be read.
func confsNamed(name string) confs {
	ask := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
	ask.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	ask.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	messages, err := ask.Execute(unix.NETLINK_ROUTE, 0)
	if err != nil || len(messages) != 1 {
		return nil
	}
	_, found := confsOf(messages[0])
	return found
}

// confsOf returns the sysctls in a message about an interface.
func confsOf(message []byte) (name string, found confs) {
	if len(message) < unix.SizeofIfInfomsg {
		return "", nil
	}
	found = confs{}
	for _, a := range attributes(message[unix.SizeofIfInfomsg:]) {
		switch a.kind {
		case unix.IFLA_IFNAME:
			name = strings.TrimRight(string(a.value), "\x00")
		case unix.IFLA_AF_SPEC:
			for _, family := range attributes(a.value) {
				for _, conf := range attributes(family.value) {
					switch {
					case family.kind == unix.AF_INET && conf.kind == inetConf:
						found["ipv4"] = conf.value
					case family.kind == unix.AF_INET6 && conf.kind == inet6Conf:
						found["ipv6"] = conf.value
					}
				}
			}
		}
	}
	return name, found
}

type attribute struct {
	kind  uint16
	value []byte
}

// attributes parses netlink attributes; the result is empty if they are malformed.
func attributes(b []byte) (list []attribute) {
	parsed, err := nl.ParseRouteAttr(b)
	if err != nil {
		return nil
	}
	for _, a := range parsed {
		list = append(list, attribute{a.Attr.Type &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER), a.Value})
	}
	return list
}

// haveValues reports whether all sysctls have the given values. It returns false if one is unknown.
func (c confs) haveValues(want []namespace.Sysctl) bool {
	for _, s := range want {
		version, rest, _ := strings.Cut(s.Path, "/")
		i, known := confIndex[version+rest[strings.LastIndexByte(rest, '/'):]]
		value := c[version]
		if !known || len(value) < 4*i+4 || strconv.FormatInt(int64(int32(binary.NativeEndian.Uint32(value[4*i:]))), 10) != s.Value {
			return false
		}
	}
	return true
}
