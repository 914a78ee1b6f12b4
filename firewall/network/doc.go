// Package network is what the parts of the firewall agree on: the gateway's addresses, the address families, and the
// names and marks by which the kernel tells boxes and verdicts apart.
package network
