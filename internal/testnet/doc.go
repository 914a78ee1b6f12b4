// Package testnet is an internet for tests and demonstrations, in network namespaces created by the process:
//
//	gateway namespace ── veth ── internet namespace
//	192.0.2.254, 2001:db8:ffff::254   every documentation address, 169.254.169.254, and what [Net.AddHost] is given
//
// In the internet namespace a DNS server answers from configurable zones, and web, WebSocket, TCP and UDP servers
// listen on every address. There are three kinds of certificates: those of hosts of the test CA, one that is not
// trusted, and those of the attacker, who issues one for any name requested. The metadata address answers with fake
// credentials. Everything is recorded, so that a test can assert "nothing arrived".
//
// The namespaces are unnamed and kept open by this process only: they end with it, however it ends. The namespace that
// the process runs in is not touched. Requires root.
package testnet
