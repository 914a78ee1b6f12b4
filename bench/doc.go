// Package bench compares boxgate with its peers. Every benchmark runs boxgate and the peer on the same work in one run:
// absolute figures on a shared machine mean little, the ratio is what counts. Run it with `make bench`, and with
// -count=5 for a median.
//
// Client, gateway and upstream share one process, so the figures include all three: the difference between two rows is
// the difference between two gateways, and the row "direct" is the cost of the harness itself.
package bench
