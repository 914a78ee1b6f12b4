// Package testnet is an internet for tests and demonstrations, in network namespaces that the process makes itself:
//
//	gateway namespace ── veth ── internet namespace
//	192.0.2.254, 2001:db8:ffff::254   every documentation address, 169.254.169.254, and what [Net.AddHost] is given
//
// In the internet namespace a DNS server answers from zones it is told, and web, WebSocket, TCP and UDP servers listen on
// every address. Three kinds of hosts differ in their certificates: those of the test CA, one whose certificate nobody
// trusts, and the attacker's, who shows a certificate of his own for whatever name he is asked. The metadata address
// answers with credentials that are fake. All of it is recorded, so that a test can say "nothing arrived".
//
// The namespaces have no name and are held open by this process alone: when it ends, in whatever way, they are gone. The
// namespace the process runs in is not touched. Root is needed.
package testnet
