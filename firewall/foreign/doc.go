// Package foreign finds chains of other programs, in nftables and in iptables-legacy, that drop packets of boxes.
package foreign
