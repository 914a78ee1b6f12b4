// Package foreign finds chains of other programs, in nftables and in iptables-legacy, that drop packets of boxes, and the
// command for the program that allows them.
package foreign
