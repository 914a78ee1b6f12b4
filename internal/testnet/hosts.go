package testnet

import (
	"net/netip"
)

// Addresses of the DNS server and of dishonest hosts.
var (
	dnsV4, dnsV6 = netip.MustParseAddr("192.0.2.53"), netip.MustParseAddr("2001:db8:53::53")

	metadataV4 = netip.MustParseAddr("169.254.169.254")
	badCertV4  = netip.MustParseAddr("198.51.100.66")
	badCertV6  = netip.MustParseAddr("2001:db8:1::66")

	attackerV4 = netip.MustParsePrefix("203.0.113.0/24")
	attackerV6 = netip.MustParsePrefix("2001:db8:bad::/48")
)

// usual are the predefined hosts.
var usual = map[string][]string{
	"dns.example.com":      {"192.0.2.53", "2001:db8:53::53"},
	"api.example.com":      {"198.51.100.10", "2001:db8:1::10"},
	"www.example.com":      {"198.51.100.11", "2001:db8:1::11"},
	"plain.example.com":    {"198.51.100.12", "2001:db8:1::12"},
	"ws.example.com":       {"198.51.100.13", "2001:db8:1::13"},
	"git.example.com":      {"198.51.100.14", "2001:db8:1::14"},
	"cdn.example.org":      {"198.51.100.20", "2001:db8:1::20"},
	"static.example.org":   {"198.51.100.20", "2001:db8:1::20"},
	"v4only.example.com":   {"198.51.100.30"},
	"v6only.example.com":   {"2001:db8:1::30"},
	"multi.example.com":    {"198.51.100.40", "198.51.100.41", "2001:db8:1::40", "2001:db8:1::41"},
	"bad-cert.example.com": {"198.51.100.66", "2001:db8:1::66"},
	"evil.example.net":     {"203.0.113.10", "2001:db8:bad::10"},
	"other.evil.net":       {"203.0.113.11", "2001:db8:bad::11"},
	"metadata.example.net": {"169.254.169.254"},
	"private.example.net":  {"10.0.0.5", "fd00::5"},
	"rebind.example.com":   {"198.51.100.50", "2001:db8:1::50"},
}

// isAttacker reports whether an address is one of the attacker's.
func isAttacker(a netip.Addr) bool { return attackerV4.Contains(a) || attackerV6.Contains(a) }

// isTrusted reports whether the host at an address has a certificate of the test CA.
func isTrusted(a netip.Addr) bool { return !isAttacker(a) && a != badCertV4 && a != badCertV6 }
