// Package nft owns the nftables table "inet boxgate": the static chains that decide about every packet of a box, and the
// versions of each box's plan.
//
// No rule or interval set that a packet can reach is ever rewritten. [Table.Replace] writes a new version of a plan beside
// the active one and then points the box's element of the map "boxes" to it, in a separate transaction. [Table.Collect]
// deletes versions without an element.
package nft
