// Package nft owns the nftables table "inet boxgate": the static chains that judge every packet of a box, and the versions
// of each box's plan.
//
// No rule or interval set that a packet can reach is ever rewritten: [Table.Replace] writes a new version of a plan beside
// the one in force, leads the box's element of the map "boxes" to it in a transaction of its own, and [Table.Collect]
// deletes what nothing leads to.
package nft
