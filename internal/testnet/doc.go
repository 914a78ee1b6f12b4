// Package testnet is an internet for tests and demonstrations, in network namespaces created by the process:
//
//	gateway namespace ── veth ── internet namespace
//	192.0.2.254, 2001:db8:ffff::254   every documentation address, 169.254.169.254, and [Net.AddHost] addresses
//
// In the internet namespace a DNS server answers from configurable zones, and web, WebSocket, TCP and UDP servers
// listen on every address. There are three kinds of certificates: certificates of the test CA for honest hosts, an
// untrusted one, and the attacker's, who issues one for any requested name. The metadata address answers with
// fake credentials. All traffic is recorded so that a test can assert that no request arrived.
//
// The namespaces are unnamed and held open by this process only, so they end with it, even if it crashes. The process's
// own namespace is not changed. Requires root.
package testnet
