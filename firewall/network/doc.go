// Package network has the definitions that the parts of the firewall share: the gateway's addresses, the address families,
// and the names and marks with which the kernel distinguishes boxes and verdicts.
package network
